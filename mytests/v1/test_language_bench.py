# SPDX-License-Identifier: Apache-2.0
"""The benchmark of answers of a real model, with a tiny one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.language.measure import Group, measure, planned
from benchmarks.language.outcomes import Outcomes
from benchmarks.language.page import write_page
from benchmarks.language.questions import DEFAULT, read_questions
from benchmarks.language.requests import Prompts
from benchmarks.language.ways import UNTRAINED
from mytests.harness.bigrams import save_bigrams
from mytests.harness.notations import SKELETON
from sequence_hooks.config import SpecialKwargs

pytestmark = pytest.mark.model

SIDE = "Outlines, in process"
CHILDREN = {"max_tokens": 6, "stop": ["###"]}
FIELDS: dict[str, Any] = {"protocol": "skeleton", "max_children": 2, "child_sampling_params": CHILDREN}
TOLD: dict[str, object] = {
    **dict.fromkeys(("command", "when", "device", "model", "version"), "something"),
    "points": 2,
    "num_questions": 1,
}


def test_an_engine_answers_in_all_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's expansions are as many and as long as the children's; what was measured is not measured again."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from benchmarks.language.in_process import InProcess

    following = {"1": ["."], "2": ["."], ".": [" "], " ": ["a"], "a": ["b"], "b": ["\n"], "\n": ["2", "#"]}
    model = save_bigrams(SKELETON, tmp_path / "model", following)
    engine: Any = InProcess(model, FIELDS, dtype="float32", max_model_len=4096, gpu_memory_utilization=0.1)
    plan = planned(read_questions(DEFAULT, 1))

    async def collect() -> list[Group]:
        measured = measure(SIDE, engine, Prompts(engine.tokenizer, SpecialKwargs(**FIELDS)), UNTRAINED, plan)
        return [group async for groups in measured for group in groups]

    groups = asyncio.run(collect())
    forked, asked, alone = (each.outcomes[0] for each in groups)
    assert (forked.num_prefix, forked.lengths) == (asked.num_prefix, asked.lengths)
    # Both of its points say the same.
    assert len(forked.lengths) == 1 and alone.num_tokens == forked.num_tokens
    assert all(each.num_computed > 0 for each in groups)
    assert "### 1 at once" in write_page(groups, TOLD)
    Outcomes(tmp_path / "file", TOLD).add(groups)
    assert Outcomes(tmp_path / "file", TOLD).lacking(SIDE, plan) == []
