# SPDX-License-Identifier: Apache-2.0
"""A run of the tiny model, recorded and drawn."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import Mode, held_out_prompts

from mytests.harness.async_output import allowed, call_back
from mytests.harness.tiers import full
from mytests.harness.v0.recorded import lane_of
from sequence_hooks.trace.__main__ import main
from sequence_hooks.trace.build import picture_of
from sequence_hooks.trace.reader import read
from vllm import LLM

pytestmark = pytest.mark.model

TIGHT = {"num_gpu_blocks_override": 32}


def open_recorded(path: Path, mode: Mode, is_async: bool, **engine_args: Any) -> LLM:
    """The model with its hooks, and its run recorded to ``path``."""
    with allowed() if is_async else nullcontext():
        llm = open_engine(hooks_for(mode, record_to=str(path)), **engine_args)
    if is_async:
        call_back(llm.llm_engine)
    return llm


@pytest.mark.parametrize(
    ("mode", "is_async", "engine_args"),
    [
        pytest.param("sync", True, TIGHT, id="tight-kv-async-sync"),
        pytest.param("promise", False, {}, id="ample-kv-promise"),
        full("sync", True, {}, id="ample-kv-async-sync"),
        full("sync", False, {}, id="ample-kv-sync"),
        full("sync", False, TIGHT, id="tight-kv-sync"),
        full("promise", False, TIGHT, id="tight-kv-promise"),
        full("promise", True, {}, id="ample-kv-async-promise"),
        full("promise", True, TIGHT, id="tight-kv-async-promise"),
    ],
)
def test_a_run_of_a_model_has_both_pictures(
    engine_args: dict[str, Any], is_async: bool, mode: Mode, tmp_path: Path
) -> None:
    """Lanes are the sequences of the outputs, with their texts; at the end all blocks are free."""
    path = tmp_path / "run.jsonl"
    prompts = held_out_prompts(16, 1, mode)
    llm = open_recorded(path, mode, is_async, **engine_args)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    picture = picture_of(read(path))
    children = [child for output in outputs for child in output.outputs[0].children]
    assert {lane.request_id: lane.text for lane in picture.lanes} == {
        **{output.request_id: output.outputs[0].text for output in outputs},
        **{child.request_id: child.text for child in children},
    }
    assert [lane_of(picture, output.request_id).prompt for output in outputs] == prompts
    assert [arrow.kind for arrow in picture.arrows].count("merge") == len(children)
    assert picture.streams[0].samples[-1].num_used == 0
    assert main([str(path)]) == 0
    assert "forkjoin-tiny" in path.with_suffix(".html").read_text()
    assert json.loads(path.with_suffix(".perfetto.json").read_text())["traceEvents"]
