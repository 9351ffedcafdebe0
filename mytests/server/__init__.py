# SPDX-License-Identifier: Apache-2.0
"""The OpenAI server with hooks, tested on every engine, as the rules are."""
