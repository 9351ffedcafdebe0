# SPDX-License-Identifier: Apache-2.0
"""The handlers and join functions of published notations for parallel decoding: ``{"protocol": "npr"}``.

A module's docstring says where a notation is defined, what was read there, and what could not be confirmed; the fields
that a notation stands for are configuration, in `sequence_hooks.config.presets`. A notation uses the public interface
of `sequence_hooks.handlers`, as a user-defined handler does, and must not know trees or engines.
"""
