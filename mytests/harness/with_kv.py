# SPDX-License-Identifier: Apache-2.0
"""Surgical engines whose BLOCKED sequences give up KV by one policy or another."""

import dataclasses
from typing import Any, get_args

from mytests.harness.surgical import SYNC_HOOKS, SurgicalEngine
from sequence_hooks.config.choices import BlockedKVPolicy
from vllm.config import SpecialKwargs

MANUAL = dataclasses.replace(SYNC_HOOKS, sync_resume="manual")
POLICIES = get_args(BlockedKVPolicy)


def engine_with_kv(hooks: SpecialKwargs = MANUAL, policy: Any = "auto", **sizes: Any) -> SurgicalEngine:
    hooks = dataclasses.replace(hooks, blocked_kv_policy=policy)
    return SurgicalEngine(hooks, **sizes)
