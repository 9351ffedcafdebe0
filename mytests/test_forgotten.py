# SPDX-License-Identifier: Apache-2.0
"""A joined child keeps only its output and lengths; `mytests/rules/test_forgotten.py` measures it."""

import dataclasses

import pytest

from mytests.surgical import HOOKS, SYNC_HOOKS, SurgicalEngine, child_of, finished, plan
from vllm.config import SpecialKwargs

INJECTING = dataclasses.replace(HOOKS, child_merge_strategy="kv_inject")


@pytest.mark.parametrize("hooks", [HOOKS, SYNC_HOOKS, INJECTING])
def test_what_the_caller_learns_stays(hooks: SpecialKwargs) -> None:
    """The output has children and grandchildren, whichever way they were joined."""
    engine = SurgicalEngine(dataclasses.replace(hooks, max_child_depth=2))
    group = engine.add()
    engine.run(plan(r="!.z", r_child_0="A!.B", r_child_0_child_0="CD"))
    (child,) = finished(engine).children
    assert (child.text, child.children[0].text) == ("ACDB", "CD")
    assert child_of(group).first_seq.get_prompt_len() == len("prompt!")
    with pytest.raises(LookupError, match="the context of 7 tokens is not kept"):
        child_of(group).prompt_token_ids[0]
    assert child_of(group).first_seq.output_logprobs == []
    engine.assert_empty()


def test_an_aborted_child_releases_all_below_it() -> None:
    """Its own children's contexts are dropped too, although they were never joined."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=2))
    group = engine.add()
    script = plan(r="!.z", r_child_0="!xxx", r_child_0_child_0="yyyy")
    engine.run_until(lambda: "r_child_0_child_0" in engine.statuses(), script)
    engine.scheduler.abort_seq_group("r_child_0")
    engine.run(script)
    grandchild = child_of(child_of(group))
    assert len(grandchild.prompt_token_ids) == len("prompt!!")
    with pytest.raises(LookupError):
        grandchild.prompt_token_ids[0]
    engine.assert_empty()


def test_a_child_whose_kv_is_kept_keeps_its_context_until_it_is_joined() -> None:
    """The context tells where each token of the result is."""
    engine = SurgicalEngine(INJECTING)
    group = engine.add()
    script = plan(r="!z", r_child_0="AB")
    engine.run_until(
        lambda: child_of(group).is_finished() if engine.statuses().get("r") == "BLOCKED" else False, script
    )
    assert child_of(group).prompt_token_ids[0] == ord("p")
    engine.run(script)
    with pytest.raises(LookupError):
        child_of(group).prompt_token_ids[0]
    engine.assert_empty()
