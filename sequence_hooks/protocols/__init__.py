# SPDX-License-Identifier: Apache-2.0
"""The handlers and join functions of published notations for parallel decoding: ``{"protocol": "npr"}``.

A module's docstring says where a notation is defined, what was read there, and what could not be confirmed; its
``NOTATION`` is what it configures, and is found by an entry point, as is that of any other distribution
(`sequence_hooks.config.notations`). A notation uses the public interface of `sequence_hooks.handlers`, as a user's
handler does, and must not know trees or engines.
"""
