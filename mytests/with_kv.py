# SPDX-License-Identifier: Apache-2.0
"""Surgical engines on a KV cache that checks what is read."""

import dataclasses
from typing import Any, get_args

from mytests.engine.surgical import SYNC_HOOKS, SurgicalEngine
from mytests.engine.v0.pretended_kv import PretendedKV
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm.config import SpecialKwargs

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
POLICIES = get_args(BlockedKVPolicy)


def engine_with_kv(hooks: SpecialKwargs = MANUAL, policy: Any = "auto", **sizes: Any) -> SurgicalEngine:
    hooks = dataclasses.replace(hooks, blocked_kv_policy=policy)
    fields: dict[str, Any] = {"block_size": 4, "model": PretendedKV(4)} | sizes
    return SurgicalEngine(hooks, **fields)
