# SPDX-License-Identifier: Apache-2.0
"""Cancelled children, of a parent that has enough results or that ends: all of them end, and nothing is left."""

from typing import Any

import pytest

from mytests.harness.handlers import FORK, hooks_with, own
from mytests.harness.outcomes import LONG, Case, assert_released, ends, rules
from mytests.harness.surgical import SpecialKwargs, SurgicalEngine, begun, completed, finished, plan, tree

FIRST = hooks_with(join_when=1, max_child_depth=2)
DROPPING = hooks_with(unjoined_at_end="cancel", max_child_depth=2)
NAMED = {FORK: own("Named")}


@pytest.mark.rule(18, 19)
@rules(
    {
        "it waits": Case(
            FIRST,
            "!!.z",
            ("!!.a", LONG, LONG),
            "VVVVVV",
            text="VVVVVVz",
            ends="cancelled stop",
            below="cancelled cancelled",
        ),
        "it waits at its end": Case(
            FIRST, "!!.z", ("a!", LONG), "VVVVVV", text="VVVVVVz", ends="cancelled stop", below="cancelled"
        ),
        "it drops its own": Case(DROPPING, "!a.z", ("!V", LONG), text="aVz", ends="stop", below="cancelled"),
        "its request ends": Case(DROPPING, "!abcdef", ("!.", LONG), text="abcdef", ends="cancelled", below="cancelled"),
    }
)
def test_what_is_below_is_cancelled_with_it(case: Case) -> None:
    """Whatever it does, at any depth."""
    case.check()


@pytest.mark.rule(18, 19)
@rules(
    {
        "first": Case(
            FIRST, "!!!.z", "A", LONG, LONG, sizes={"max_num_seqs": 2}, text="Az", ends="stop cancelled cancelled"
        ),
        "dropping": Case(
            DROPPING, "!!abc", LONG, LONG, sizes={"max_num_seqs": 2}, text="abc", ends="cancelled cancelled"
        ),
    }
)
def test_one_that_was_never_admitted_has_sampled_nothing(case: Case) -> None:
    """It is cancelled like the others."""
    assert case.check().children[-1].token_ids == ()


@pytest.mark.rule(18, 19)
@pytest.mark.parametrize(
    ("hooks", "aborted"), [(FIRST, "r"), (FIRST, "r_child_0"), (DROPPING, "r")], ids=["first", "child", "dropping"]
)
def test_an_abort_is_an_abort(hooks: SpecialKwargs, aborted: str) -> None:
    """Whoever is below a sequence that its caller has aborted is not told as cancelled."""
    engine = SurgicalEngine(hooks)
    script = plan(**tree("!!." + "a" * 9, ("!." + LONG, LONG), LONG))
    with begun(engine, script, lambda: "r_child_0_child_0" in engine.statuses()):
        engine.abort(aborted)
        assert engine.driver.trees.stats.num_cancelled == 0
        engine.abort("r")


@pytest.mark.rule(18)
@pytest.mark.parametrize("most", range(4, 30, 3))
@pytest.mark.parametrize(
    ("fields", "text"),
    [({"join_when": 1}, "!!.!.z"), ({"unjoined_at_end": "cancel"}, "!!.!b"),
     ({"unjoined_at_end": "cancel", "handlers": NAMED}, "!!1*bcdef")],
    ids=["first", "dropping", "named"],
)  # fmt: skip
def test_a_budget_ends_it_in_any_case(fields: dict[str, Any], text: str, most: int) -> None:
    """What a wait has asked for is joined, and none of it is cancelled."""
    engine = SurgicalEngine(hooks_with(max_tree_tokens=most, max_child_depth=2, **fields), max_num_seqs=4)
    output = completed(engine, **tree(text, ("!!a", "BBBBB", "BBBBB"), "V" * 9, LONG))
    assert output.finish_reason in ("length", "stop")
    joined = {segment.child for segment in output.segments if segment.origin == "merged"}
    assert joined.isdisjoint(child.request_id for child in output.children if child.cancelled)


@pytest.mark.rule(18, 19)
class TestAccounting:
    @pytest.mark.parametrize(
        ("hooks", "text", "told"), [(FIRST, "!!.zzzz", "cancelled stop"), (DROPPING, "!!zzzzzzz", "cancelled late")]
    )
    def test_usage_counts_what_they_have_sampled(self, hooks: SpecialKwargs, text: str, told: str) -> None:
        """They have cost what any token costs; metrics count the children."""
        engine = SurgicalEngine(hooks)
        output = completed(engine, **tree(text, LONG, "VW"))
        stats = engine.driver.trees.stats
        num_cancelled = sum(child.cancelled for child in output.children)
        assert ends(output) == told
        assert (stats.num_spawned, stats.num_failed, stats.num_cancelled) == (2, 0, num_cancelled)
        assert output.tree_tokens.sampled_below == sum(len(child.token_ids) for child in output.children)

    @pytest.mark.parametrize(("hooks", "text"), [(FIRST, "!!."), (FIRST, "!!.zzz"), (DROPPING, "!!ab")])
    def test_a_stream_of_children_tells_it(self, hooks: SpecialKwargs, text: str) -> None:
        """The last delta of a child says how it has ended, before its request is told as finished."""
        engine = SurgicalEngine(hooks)
        engine.add(extra_args={"stream_children": True})
        engine.run_until(lambda: any(output.finished for output in engine.handed_out), plan(**tree(text, LONG, "VW")))
        for child in finished(engine).children:
            told = [delta for delta in engine.deltas if delta.request_id == child.request_id]
            assert told[-1].finish_reason == child.finish_reason
            assert [token for delta in told for token in delta.token_ids] == list(child.token_ids)
        engine.assert_empty()

    @pytest.mark.parametrize(
        ("hooks", "texts"), [(FIRST, ("!!." + "z" * 9, LONG, "V")), (DROPPING, ("!." + "z" * 9, ("!V", LONG)))]
    )
    def test_it_keeps_no_context(self, hooks: SpecialKwargs, texts: tuple[Any, ...]) -> None:
        """A tree lives as long as its request, and a cancelled child needs as little as a joined one."""
        engine, script = SurgicalEngine(hooks), plan(**tree(*texts))
        with begun(engine, script, lambda: engine.num_sampled("r") == 5):
            (root,) = engine.scheduler.trees.roots
            for branch in {*root.subtree()} - {root}:
                assert_released(branch)


@pytest.mark.parametrize("num_blocks", [9, 10, 11, 12, 14, 20])
@pytest.mark.parametrize("merge", ["kv_inject", "concatenate"])
@pytest.mark.parametrize(
    ("fields", "texts", "text"),
    [
        ({"join_when": 1}, ("!!.b!!.z", LONG, ("!V.", "CC"), LONG, "D"), "VCCbDz"),
        ({"unjoined_at_end": "cancel"}, ("!.b!!zzzzzzzzz", ("!V", LONG), LONG, LONG), "Vbzzzzzzzzz"),
        ({"handlers": NAMED}, ("!!!1*bcd2*e.z", "AAAAAAAA", "VWX", "CDEF"), "1*VWXbcd2*CDEFeAAAAAAAAz"),
    ],
    ids=["first", "dropping", "named"],
)
def test_under_pressure_it_is_the_same(
    fields: dict[str, Any], texts: tuple[Any, ...], text: str, merge: str, num_blocks: int
) -> None:
    """Sequences are preempted and lose their KV meanwhile; so it is where a wait names the children."""
    hooks = hooks_with(child_merge_strategy=merge, max_child_depth=2, **fields)
    engine = SurgicalEngine(hooks, num_blocks=num_blocks, max_model_len=32, max_num_seqs=4)
    engine.add(prompt="p")
    engine.run(plan(**tree(*texts)), max_steps=500)
    assert finished(engine).text == text
