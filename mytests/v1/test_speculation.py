# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding: a step has several tokens of a sequence, and its tree is that of as many steps."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.v1.models import check_answers, opened, scheduler_of  # isort: split

from forkjoin_engine import GREEDY, MODEL_FOLDER, hooks_for
from forkjoin_task import MODES as TASKS

from mytests.harness.handlers import FORK, own
from mytests.harness.installed import MODES
from mytests.harness.recorded import engine_recorded_to, only
from mytests.harness.sure import sure_prompts
from mytests.harness.surgical import (
    EOS,
    HOOKS,
    PROMISE,
    SYNC_HOOKS,
    SpecialKwargs,
    SurgicalEngine,
    begun,
    completed,
    finished,
    ids,
    plan,
    tree,
)
from mytests.harness.tiers import full, names, pairs
from mytests.harness.v1.drafters import DRAFTERS
from mytests.harness.v1.releases import RELEASE, since
from sequence_hooks.trace import events
from sequence_hooks.trace.reader import read
from vllm.v1.outputs import DraftTokenIds

INJECTING = replace(SYNC_HOOKS, child_merge_strategy="kv_inject")

TREES: dict[str, tuple[SpecialKwargs, tuple[Any, ...]]] = {
    "each promise blocks": (HOOKS, ("ab!cdefgh!i", "AB", "CDEFG")),
    "a sync blocks": (SYNC_HOOKS, ("some!text!and.after it", "first result", "second")),
    "nested": (replace(SYNC_HOOKS, max_child_depth=3), ("a!bc.z", ("AB!CD.E", "inner"))),
    "by text": (SpecialKwargs(handlers={"(*": own("Pair")}), ("ab(*defgh(*", "first", "second", *"WXYZ")),
    "by name": (replace(SYNC_HOOKS, handlers={FORK: own("Named")}), ("!!1*bcdef.z", "A" * 12, "VW")),
    "detached": (replace(SYNC_HOOKS, block_on="never"), ("ab!cdefgh!i", "AB", "CDEFG")),
    "with the first result": (replace(SYNC_HOOKS, join_when=1), ("!!abc.defg", "A" * 30, "VW")),
    "a budget and no tree": (replace(SYNC_HOOKS, max_tree_tokens=6), ("abcdefghijkl",)),
    "children end it": (SYNC_HOOKS, ("ab!cd!", "first result", "second")),
    "injected": (INJECTING, ("some!text!and.after!it.z", "first result", "second", "third")),
    "injected side by side": (replace(INJECTING, position_rule="overlap"), ("a!b!c.defgh", "first result", "second")),
}


def engine_with(num_drafts: int, mode: str, hooks: SpecialKwargs, **sizes: Any) -> SurgicalEngine:
    schedule, runner = mode.split("-")
    is_async = schedule == "asynchronous"
    return SurgicalEngine(hooks, is_async=is_async, runner=runner, num_drafts=num_drafts, **sizes)


def has_no_end(child: Any) -> bool:
    """How far it has come is a matter of time."""
    return bool(child.cancelled or child.finish_reason == "abort")


def told(completion: Any) -> list[Any]:
    """What a caller learns of a completion and of its children; not when, and not how their KV came about."""
    children = [
        [each.spawn_position, each.finish_reason, [] if has_no_end(each) else [each.text, each.segments, told(each)]]
        for each in completion.children
    ]
    joins = [(join.position, join.num_merged, join.num_cut) for join in completion.joins]
    return [completion.text, completion.token_ids, joins, completion.segments, children]


SIZES: dict[str, dict[str, Any]] = {
    "": {},
    "tight": {"num_blocks": 16, "max_num_seqs": 2, "max_model_len": 64},
    "states": {"layers": ("full", "state")},
}
CASES = [
    pytest.param(*TREES[name], sizes, id=f"{name} {size}".strip())
    for size, sizes in SIZES.items()
    for name in TREES
    # Upstream's states cannot be injected.
    if not (size == "states" and TREES[name][0].injects_kv)
]


@pytest.mark.rule(0, 1, 2, 3)
@pytest.mark.parametrize(("hooks", "texts", "sizes"), CASES)
@pytest.mark.parametrize("mode", MODES)
def test_a_tree_is_the_same(hooks: SpecialKwargs, texts: tuple[Any, ...], sizes: Any, mode: str) -> None:
    """Spawns, segments and joins included, with logprobs of each token, in fewer steps."""
    outputs, steps = [], []
    for num_drafts in (0, 3):
        engine = engine_with(num_drafts, mode, hooks, **sizes)
        engine.add()
        steps.append(engine.run(plan(**tree(*texts))))
        outputs.append(finished(engine))
    one_by_one, in_runs = outputs
    assert told(in_runs) == told(one_by_one)
    assert in_runs.limits_met == one_by_one.limits_met
    assert len(in_runs.logprobs) == len(one_by_one.logprobs)
    # With states a child computes its context, which takes steps of its own.
    assert steps[1] < steps[0] or "layers" in sizes


MANUAL = replace(SYNC_HOOKS, sync_resume="manual", max_child_depth=2)
TWO = ("ab!c!defgh.ijkl", "first result", "second")

WHEN_ABORTED = {"r": "BLOCKED", "r_child_0": "RUNNING"}.items()

AROUND: dict[str, tuple[SpecialKwargs, tuple[Any, ...], dict[str, Any]]] = {
    "a stop string": (SYNC_HOOKS, ("ab!cd.efSTOP", "ABC"), {"stop": ["ST"]}),
    "a child's stop string": (SYNC_HOOKS, ("ab!cd.ef", "ABCSTOP"), {"stop": ["ST"]}),
    "a stop token": (SYNC_HOOKS, TWO, {"stop_token_ids": ids("d")}),
    "max_tokens": (SYNC_HOOKS, TWO, {"max_tokens": 7}),
    "a caller resumes it": (MANUAL, ("ab!cd.efgh", ("AB!CD.EFGH", "inner")), {}),
    "a child is aborted": (SYNC_HOOKS, ("ab!c!d.efgh", "A" * 40, "second"), {}),
    "an adapter": (SYNC_HOOKS, TWO, {}),
    "prompt logprobs": (SYNC_HOOKS, TWO, {"prompt_logprobs": 0}),
}


if RELEASE >= (0, 32):
    # Before, upstream leaves the rest of the run among the tokens, with hooks or without.
    AROUND["a stop string before a promise"] = (SYNC_HOOKS, ("aST!cd.ef", "ABC"), {"stop": ["ST"]})


@pytest.mark.rule(0, 1, 8, 9)
@pytest.mark.parametrize(("name", "mode"), pairs([(name,) for name in AROUND], MODES))
def test_a_tree_is_the_same_whatever_happens_to_it(name: str, mode: str) -> None:
    """With little KV and few rows, beside another request."""
    hooks, texts, params = AROUND[name]
    outputs = []
    for num_drafts in (0, 3):
        adapters = 1 if name == "an adapter" else None
        sizes = {"num_blocks": 20, "max_num_seqs": 3, "max_model_len": 64, "max_loras": adapters}
        engine, script = engine_with(num_drafts, mode, hooks, **sizes), plan(**tree(*texts), s="xyz" * 9)
        engine.add("s", "another")
        engine.add("r", "prompt", 0, adapters or 0, **params)
        while engine.has_unfinished():
            for waiting in engine.awaiting():
                engine.resume(waiting, "tool")
            if name == "a child is aborted" and engine.statuses().items() >= WHEN_ABORTED:
                engine.abort("r_child_0")
            engine.step(script)
            engine.check_integrity()
        engine.assert_empty()
        outputs.append([told(finished(engine)), finished(engine).finish_reason, finished(engine, "s").text])
    assert outputs[0] == outputs[1]


@since(30, "the scheduler asks grammars itself")
@pytest.mark.parametrize("mode", MODES)
def test_a_grammar_is_told_what_is_in_the_output(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of no token that is taken back."""
    told_to: dict[str, list[int]] = defaultdict(list)
    engine = engine_with(3, mode, HOOKS)
    manager, taken_back = engine.scheduler.structured_output_manager, engine.scheduler._stats

    def accept_tokens(request: Any, new: list[int]) -> bool:
        told_to[request.request_id] += new
        return True

    monkeypatch.setattr(manager, "accept_tokens", accept_tokens)
    output = completed(engine, **tree("a!bcdef", "ABCD"))
    assert taken_back.num_taken_back > 0
    assert told_to == {"r": [*ids("a"), PROMISE, *ids("bcdef"), EOS], "r_child_0": [*ids("ABCD"), EOS]}
    assert output.text == "aABCDbcdef"


ONE_AT_A_TIME = tree("ab!cdefgh!i", ("AB!CDEF", "vwxyz"), "GHIJ")
SIDE_BY_SIDE = tree("!!!abcdefgh.z", "A" * 9, "BCDEFGHIJKLM", "VW")


@pytest.mark.rule(14)
@pytest.mark.parametrize(("most", "mode"), pairs([(most,) for most in range(1, 29, 2)], MODES))
class TestBudgets:
    def test_one_that_is_used_by_one_sequence_at_a_time_ends_a_tree_at_the_same_token(
        self, most: int, mode: str
    ) -> None:
        """Wherever in a run the last token is."""
        hooks = replace(HOOKS, max_tree_tokens=most, max_child_depth=2)
        one_by_one, in_runs = (completed(engine_with(n, mode, hooks), **ONE_AT_A_TIME) for n in (0, 4))
        assert told(in_runs) == told(one_by_one)
        assert in_runs.limits_met == one_by_one.limits_met

    def test_one_that_several_use_is_never_exceeded(self, most: int, mode: str) -> None:
        """And is used up; each sequence has the first of its tokens."""
        output = completed(engine_with(4, mode, replace(SYNC_HOOKS, max_tree_tokens=most)), **SIDE_BY_SIDE)
        own = sum(each.end - each.start for each in output.segments if each.origin == "sampled")
        assert own + output.tree_tokens.sampled_below == most
        assert all(SIDE_BY_SIDE[child.request_id].startswith(child.text) for child in output.children)


@pytest.mark.parametrize("is_async", [False, True])
def test_tokens_after_one_that_blocks_are_taken_back(is_async: bool, tmp_path: Path) -> None:
    """Upstream counts them as accepted; our metric has them, and a recording all three numbers of each sequence."""
    engine = engine_recorded_to(tmp_path / "run.jsonl", HOOKS, num_drafts=3, is_async=is_async)
    assert completed(engine, **tree("a!bcdef", "ABCD")).text == "aABCDbcdef"
    stats = [each.spec_decoding_stats for each in engine.scheduler_stats if each.spec_decoding_stats is not None]
    num_drafted, num_accepted = (sum(getattr(each, f"num_{n}_tokens") for each in stats) for n in ("draft", "accepted"))
    assert (num_accepted, engine.scheduler._stats.num_taken_back) == (8, 1)
    ends = {each.sequence: each for each in only(read(tmp_path / "run.jsonl"), events.Finished)}
    assert {name: (each.num_accepted, each.num_taken_back) for name, each in ends.items()} == {
        "r": (6, 1), "r_child_0": (2, 0),
    }  # fmt: skip
    # With steps in flight some are computed for nothing: upstream drops their tokens, and does not count their drafts.
    num_recorded = sum(each.num_drafted for each in ends.values())
    assert num_recorded > num_drafted if is_async else num_recorded == num_drafted


def test_drafts_for_a_sequence_that_is_set_aside_are_dropped() -> None:
    """They would follow its join."""
    engine = SurgicalEngine(HOOKS, num_drafts=3, is_async=False)
    script = plan(r="a!bcd", r_child_0="A" * 9)
    with begun(engine, script, lambda: engine.statuses().get("r") == "BLOCKED"):
        engine.scheduler.update_draft_token_ids(DraftTokenIds(["r", "r_child_0", "gone"], [ids("xy"), ids("A"), [1]]))
        assert {name: request.spec_token_ids for name, request in engine.scheduler.requests.items()}["r"] == []
    assert finished(engine).text == "a" + "A" * 9 + "bcd"


def test_a_request_that_meets_no_hook_keeps_its_runs() -> None:
    """It takes as many steps as on an engine without hooks: each has three drafts, two of which are right."""
    engine = SurgicalEngine(HOOKS, num_drafts=3, is_async=False)
    engine.add(prompt="abc")
    assert engine.run(plan(r="x" * 30)) <= 1 + 31 / 2
    assert engine.scheduler._stats.num_taken_back == 0


DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"
ITSELF = {"method": "draft_model", "model": str(MODEL_FOLDER), "num_speculative_tokens": 3}


@pytest.mark.model
@pytest.mark.floats
@pytest.mark.every_release
@pytest.mark.paths
@pytest.mark.skipif(RELEASE == (0, 30), reason="draft models of vLLM 0.30 need Triton, which a CPU lacks")
@pytest.mark.parametrize("task", names(TASKS, ["sync"]))
def test_a_model_that_drafts_for_itself_answers_the_same(task: Any) -> None:
    """Penalties included, which count what was sampled before a join; and afterwards the engine holds nothing."""
    params = GREEDY.clone()
    params.frequency_penalty = 0.3
    prompts, found = sure_prompts(4, 7, task), []
    for fields in ({}, {"speculative_config": ITSELF}):
        with opened(hooks_for(task), **fields) as engine:
            check_answers(engine, 4, 7, task)
            found.append([told(each.outputs[0]) for each in engine.generate(prompts, params, use_tqdm=False)])
            scheduler_of(engine).check_integrity()
    assert found[0] == found[1]


@pytest.mark.model
@pytest.mark.floats
@pytest.mark.paths
@pytest.mark.parametrize(("method", "task"), [full(*each) for each in zip(DRAFTERS, ("sync", *TASKS), strict=True)])
def test_drafters_of_other_kinds_change_no_tree(method: str, task: Any, tmp_path: Path) -> None:
    """Though few of their drafts are right, and some of those that are get taken back."""
    assert accepted_where_trees_are_the_same(hooks_for(task), DRAFTERS[method](tmp_path), task) > 0


@pytest.mark.model
@pytest.mark.full
def test_injected_kv_is_the_drafters_too() -> None:
    """Four of ten drafts are right where its layers have not got children's KV, or drafts after glue write over it."""
    hooks = hooks_for("promise", child_merge_strategy="kv_inject")
    assert accepted_where_trees_are_the_same(hooks, {"speculative_config": ITSELF}, "promise") > 0.5


def accepted_where_trees_are_the_same(hooks: SpecialKwargs, drafting: dict[str, Any], task: Any) -> float:
    """The part of the drafts that is accepted."""
    prompts, found, counts = sure_prompts(8, 7, task), [], dict[str, float]()
    for fields in ({**drafting, "speculative_config": None}, drafting):
        with opened(hooks, disable_log_stats=False, **fields) as engine:
            found.append([told(each.outputs[0]) for each in engine.generate(prompts, GREEDY, use_tqdm=False)])
            counts |= {each.name: each.value for each in engine.get_metrics() if each.name in (DRAFTED, ACCEPTED)}
    assert found[0] == found[1]
    return counts[ACCEPTED] / counts[DRAFTED]
