# SPDX-License-Identifier: Apache-2.0
"""A caller aborts one child of a request by its id; the engine's own ids of requests have random digits."""

import os
from typing import Any

import pytest

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import GREEDY, hooks_for, open_engine

from mytests.harness.sure import sure_prompts
from vllm.sampling_params import RequestOutputKind

pytestmark = [pytest.mark.model, pytest.mark.every_release]


def test_a_caller_aborts_a_child_by_the_id_that_it_knows() -> None:
    """Its parent joins the others without it, and an id that nobody has any more aborts nothing."""
    llm: Any = open_engine(hooks_for("sync"))
    engine = llm.llm_engine
    params = GREEDY.clone()
    params.output_kind, params.extra_args = RequestOutputKind.DELTA, {"stream_children": True}
    engine.add_request("r", sure_prompts(1, 12, "sync")[0], params)
    deltas: list[Any] = []
    while not deltas:
        deltas = [delta for output in engine.step() for delta in output.child_deltas]
    aborted = deltas[0].request_id
    assert aborted == "r_child_0"
    engine.abort_request([aborted, "r_child_99", "nobody"])
    engine.abort_request([aborted])
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    (completion,) = outputs[-1].outputs
    failed, *others = completion.children
    assert (failed.request_id, failed.failed, failed.finish_reason) == (aborted, True, "abort")
    assert others and not any(child.failed for child in others)
    assert completion.finish_reason == "stop"
    engine.engine_core.engine_core.scheduler.check_integrity()
    assert not engine.output_processor.request_states
    engine.engine_core.shutdown()
