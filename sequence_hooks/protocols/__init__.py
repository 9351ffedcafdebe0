# SPDX-License-Identifier: Apache-2.0
"""Published notations for parallel decoding, each as fields of `SpecialKwargs`: ``{"protocol": "npr"}``.

A module's docstring says where a notation is defined, what was read there, and what could not be confirmed. Its
``FIELDS`` are used for the fields that a user does not give, and the tags in its ``ONE_TOKEN`` have to be one token
each; see `sequence_hooks.config.presets`.
"""
