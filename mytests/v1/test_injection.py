# SPDX-License-Identifier: Apache-2.0
"""`kv_inject` on V1's scheduler: glue requests, and what a join gets under pressure."""

import dataclasses
import pickle
from typing import Any

import pytest

from mytests.harness.injecting import INJECT, OVERLAP, SYNC_INJECT, prefilled
from mytests.harness.surgical import EOS, SurgicalEngine, begun, completed, finished, plan
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import RequestStatus

LONG_GLUE = dataclasses.replace(SYNC_INJECT, merge_separator="-----", children_per_promise=2)
CHILDREN = {"r_child_0": "ABCDE", "r_child_1": "VWXYZ"}


def with_glue_in_two_steps(**sizes: Any) -> tuple[SurgicalEngine, Any]:
    """An engine after the first of the steps that compute a join's glue, whose budget ends within a run."""
    engine: Any = SurgicalEngine(LONG_GLUE, max_num_batched_tokens=4, max_num_seqs=4, **sizes)
    engine.add(prompt="pro")
    script = plan(r="!.zzzz", **CHILDREN)
    engine.run_until(
        lambda: any(each.request.is_prefill_chunk for each in engine.scheduler._injection.glue.values()), script
    )
    return engine, script


class TestGlueRequests:
    def test_all_glue_is_computed_in_one_step(self) -> None:
        """A join of four children costs one step, in which their parent samples."""
        engine: Any = SurgicalEngine(dataclasses.replace(SYNC_INJECT, children_per_promise=4))
        script = plan(r="!.zz", **{f"r_child_{k}": "ABCD" for k in range(4)})
        with begun(engine, script, lambda: bool(engine.scheduler._injection.glue)):
            steps = engine.step(script)
            computed = [*(f"r_glue_{index}" for index in (7, 12, 17, 22)), "r"]
            assert [(each.request_id, each.num_tokens) for each in steps] == [(name, 1) for name in computed]
        assert (finished(engine).text, prefilled(engine)) == ("\n".join(["ABCD"] * 4) + "zz", [5])

    @pytest.mark.parametrize("seqs", [1, 2, 3])
    def test_few_rows_make_it_take_more_steps(self, seqs: int) -> None:
        """Each glue request needs a row in the batch for its step."""
        engine = SurgicalEngine(dataclasses.replace(INJECT, children_per_promise=2), max_num_seqs=seqs)
        engine.add(prompt="prompt")
        engine.add("s", prompt="other")
        engine.run(plan(r="!zz", s="!y", s_child_0="abcd", s_child_1="efgh", **CHILDREN))
        assert (finished(engine).text, finished(engine, "s").text) == ("ABCDE\nVWXYZzz", "abcd\nefghy")

    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_others_are_admitted_while_it_is_computed_in_parts(self, policy: Any) -> None:
        """What comes after a run waits for it, and nobody else."""
        engine: Any = SurgicalEngine(LONG_GLUE, scheduling_policy=policy)
        engine.scheduler.scheduler_config.long_prefill_token_threshold = 2
        script = plan(r="!.zz", s="a" * 9, t="b", **CHILDREN)
        with begun(engine, script, lambda: bool(engine.scheduler._injection.glue), prompt="pro"):
            for name in ("s", "t"):
                engine.add(name, prompt="on")
                assert name in [each.request_id for each in engine.step(script)]
                assert "r" in engine.queues()["waiting with KV"]
        assert (finished(engine).text, prefilled(engine)) == ("ABCDE-----VWXYZzz", [7])

    def test_what_waits_for_it_gives_up_kv_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Upstream may preempt a run in the step that leaves what comes after it out."""
        engine: Any = SurgicalEngine(LONG_GLUE, scheduling_policy="priority")
        scheduler = engine.scheduler
        scheduler.scheduler_config.long_prefill_token_threshold = 2
        engine.add("s", prompt="ot")
        engine.add(prompt="pro", priority=1)
        script = plan(r="!.zz", s="a" * 30, **CHILDREN)
        engine.run_until(lambda: bool(scheduler._injection.glue), script)
        allocate, without_room = KVCacheManager.allocate_slots, iter(["s"])

        def allocate_or_fail(manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.request_id == "s" and next(without_room, None):
                return None
            return allocate(manager, request, *args, **kwargs)

        engine.step(script)
        monkeypatch.setattr(KVCacheManager, "allocate_slots", allocate_or_fail)
        engine.step(script)
        assert scheduler.evictor.evictions["discard"] == 1 and not scheduler._injection.glue
        scheduler.check_integrity()
        engine.run(script)
        assert finished(engine).text == "ABCDE-----VWXYZzz"

    def test_all_of_a_join_has_one_list_of_tokens(self) -> None:
        """Also in another process: a context may be long, and its children many."""
        engine: Any = SurgicalEngine(dataclasses.replace(SYNC_INJECT, children_per_promise=4))
        script = plan(r="!.zz", **{f"r_child_{k}": "ABCD" for k in range(4)})
        with begun(engine, script, lambda: bool(engine.scheduler._injection.glue)):
            glue = [each.request for each in engine.scheduler._injection.glue.values()]
            owner = engine.scheduler.requests["r"].prompt_token_ids
            told = [owner, *(each.prompt_token_ids for each in glue), *(each._all_token_ids for each in glue)]
            for first, *views in (told, pickle.loads(pickle.dumps(told))):
                assert len(views) == 8 and {id(view._token_ids) for view in views} == {id(first)}
            assert all(each.num_tokens == len(each.prompt_token_ids) < len(owner) for each in glue)

    def test_nobody_knows_of_it(self) -> None:
        """Its owner can give up all of its blocks; a request counts once, and glue cannot be aborted by itself."""
        engine, script = with_glue_in_two_steps()
        assert {pool_of(engine)[index].ref_cnt for index in engine.blocks_of("r")} == {1}
        latest = engine.scheduler_stats[-1]
        assert (latest.num_running_reqs, latest.num_waiting_reqs) == (1, 0)
        (name,) = list(engine.scheduler._injection.glue)[:1]
        assert engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED) == []
        engine.run(script)
        assert finished(engine).text == "ABCDE-----VWXYZzzzz"

    @pytest.mark.parametrize("how", ["preempted", "reset"])
    def test_a_sequence_whose_glue_is_given_up_is_recomputed(self, how: str) -> None:
        """Upstream preempts whatever runs, and does not know that it is only glue; or it resets its cache."""
        engine, script = with_glue_in_two_steps()
        if how == "preempted":
            (running,) = engine.scheduler.running
            engine.scheduler.running.remove(running)
            engine.scheduler._preempt_request(running, 0.0)
            assert engine.scheduler.evictor.evictions["discard"] == 1
        else:
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
            engine.kv.blocks.clear()
        engine.scheduler.check_integrity()
        engine.run(script)
        assert finished(engine).text == "ABCDE-----VWXYZzzzz"

    @pytest.mark.parametrize("named", ["r", None])
    def test_an_abort_takes_it_along(self, named: str | None) -> None:
        """Whether the request is named, or all of them are aborted."""
        engine, _ = with_glue_in_two_steps()
        engine.output_processor.abort_requests(["r"], internal=False)
        engine.scheduler.finish_requests(named, RequestStatus.FINISHED_ABORTED)
        engine.assert_empty()


@pytest.mark.usefixtures("each_mode")
class TestPressure:
    def test_without_room_for_a_join_nothing_is_injected(self) -> None:
        """What its children have is freed instead, and the merged tokens are prefilled."""
        engine = SurgicalEngine(
            dataclasses.replace(INJECT, blocked_kv_policy="preserve"), num_blocks=8, max_model_len=32
        )
        engine.add(prompt="prompt")
        engine.add("s", prompt="others")
        engine.run(plan(r="!z", s="!" + "y" * 3, r_child_0="ABCDEFGHI", s_child_0="abcdefghi"), max_steps=400)
        assert (finished(engine).text, finished(engine, "s").text) == ("ABCDEFGHIz", "abcdefghiyyy")

    def test_a_child_that_lost_its_fork_keeps_its_positions(self) -> None:
        """Its context is computed from its tokens."""
        engine: Any = SurgicalEngine(OVERLAP)
        script = plan(r="!.!.z", r_child_0="ABCDEF", r_child_1="XYZ", r_child_2="GHI", r_child_3="JK")
        with begun(engine, script, lambda: "r_child_2" in engine.scheduler.kv.forks.children):
            assert engine.scheduler.branches["r_child_2"].injected is not None
            engine.scheduler.kv.forks.release("r_child_2")
            engine.step(script)
            assert engine.scheduler.branches["r_child_2"].injected is None
        assert finished(engine).text == "ABCDEF\nXYZGHI\nJKz"


class TestPrefixCache:
    def test_a_sequence_without_injected_kv_is_in_it(self) -> None:
        """Here a child ends with its first token, so that there is nothing to inject."""
        engine: Any = SurgicalEngine(dataclasses.replace(SYNC_INJECT, merge_separator=""))
        completed(engine, prompt="promptprompt", r="!.zzzzzzzz", r_child_0=chr(EOS))
        assert sum(block.block_hash is not None for block in pool_of(engine)) == 5


def pool_of(engine: Any) -> list[Any]:
    """All blocks of an engine."""
    blocks: list[Any] = engine.scheduler.kv_cache_manager.block_pool.blocks
    return blocks
