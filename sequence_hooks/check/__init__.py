# SPDX-License-Identifier: Apache-2.0
"""Whether a model and a configuration fit: tokens, tags, handlers, lengths, chat template. No weights are loaded."""
