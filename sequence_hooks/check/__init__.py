# SPDX-License-Identifier: Apache-2.0
"""Whether a model and a configuration fit: layers, tokens, tags, handlers, lengths, chat template.

It owns what can be said before an engine starts, from the model's files alone. It must not load weights, nor make an
engine, of which it asks at most what it would make of the model's configuration. It refuses nothing by rules of its
own: a finding is what `sequence_hooks.config` or a handler says.
"""
