# SPDX-License-Identifier: Apache-2.0
"""Whether a model and a configuration fit: tokens, tags, handlers, lengths, chat template.

It owns what can be said before an engine starts, from the model's files alone. It must not load weights, nor import an
engine, and refuses nothing by rules of its own: a finding is what `sequence_hooks.config` or a handler says.
"""
