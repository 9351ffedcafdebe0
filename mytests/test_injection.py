# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` without a model: which tokens are copied from where to where, and which are prefilled."""

import dataclasses
from typing import Any

from mytests.pretended_kv import PretendedKV
from mytests.surgical import SYNC_HOOKS, SurgicalEngine, finished, plan
from vllm.config import SpecialKwargs

INJECT = dataclasses.replace(SYNC_HOOKS, child_merge_strategy="kv_inject")


def engine_with_kv(hooks: SpecialKwargs = INJECT, block_size: int = 4, **sizes: Any) -> SurgicalEngine:
    return SurgicalEngine(hooks, block_size=block_size, model=PretendedKV(block_size), **sizes)


def test_a_resume_prefills_glue_only() -> None:
    """The sync token, the separator, and the last token."""
    engine = engine_with_kv()
    engine.add()
    engine.run(plan(r="!!.z", r_child_0="ABCDE", r_child_1="VWXYZ"))
    completion = finished(engine)
    assert completion.text == "ABCDE\nVWXYZz"
    assert [join.num_prefill for join in completion.joins] == [3]
    assert num_injected(engine) == 9
    engine.assert_empty()


def num_injected(engine: SurgicalEngine) -> int:
    """Tokens whose KV was copied so far."""
    assert isinstance(engine.model, PretendedKV)
    return engine.model.num_injected
