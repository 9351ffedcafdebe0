# SPDX-License-Identifier: Apache-2.0
"""Sequence hooks for an unmodified, current vLLM (V1). Only this package of `sequence_hooks` imports vLLM.

``core`` runs in the engine's process: it decides what hook tokens do. ``frontend`` runs where requests come in: it
tells their callers what happened. ``plugin`` is what upstream loads.
"""

from sequence_hooks.v1.settings import engine_args

__all__ = ["engine_args"]
