# SPDX-License-Identifier: Apache-2.0
"""What is known of running trees at one moment, on both engines."""

import dataclasses

from mytests.fuzz.handlers import REPLACING, ReplacesLetters, replacement_of
from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, begun, ids, plan
from sequence_hooks.serving.live.trees import LiveRequests, LiveSequence, Tokens, Tree

LIVE = dataclasses.replace(SYNC_HOOKS, live_page=True)
MANUAL = dataclasses.replace(LIVE, sync_resume="manual")


def states_of(tree: Tree) -> dict[str, str]:
    """The states of its sequences."""
    return {sequence.request_id: sequence.state for sequence in tree}


class TestTree:
    def test_each_sequence_has_its_state(self) -> None:
        """Parents come before their children; nobody else is a tree, nor is a child by itself."""
        engine, script = SurgicalEngine(LIVE), plan(r="a!.z", r_child_0="BCDEF")
        with begun(engine, script, lambda: engine.statuses().get("r") == "BLOCKED"):
            engine.step(script)
            root, child = engine.live_tree("r", 100)
            assert (root.state, root.waits_for, root.parent_id) == ("blocked", "children", None)
            assert (child.state, child.waits_for, child.parent_id, child.spawn_position) == ("running", None, "r", 2)
            assert root.since is not None and root.started is not None and root.since >= root.started
            assert engine.live_tree("s", 100) == engine.live_tree("r_child_0", 100) == ()

    def test_its_tokens_have_their_origin(self) -> None:
        """Sampled, merged from a child, and what a caller has given."""
        engine, script = SurgicalEngine(MANUAL), plan(r="!.zzz", r_child_0="BC")
        with begun(engine, script, engine.is_waiting_for_callers):
            assert engine.live_tree("r", 100)[0].waits_for == "caller"
            engine.resume("r", "tool")
            engine.run_until(lambda: engine.live_tree("r", 100)[0].num_output_tokens == 9, script)
            root, child = engine.live_tree("r", 100)
            assert root.last_tokens == (
                Tokens("sampled", None, (PROMISE, SYNC)),
                Tokens("merged", "r_child_0", tuple(ids("BC"))),
                Tokens("inserted", None, tuple(ids("tool"))),
                Tokens("sampled", None, tuple(ids("z"))),
            )
            last = Tokens("inserted", None, tuple(ids("l"))), Tokens("sampled", None, tuple(ids("z")))
            assert engine.live_tree("r", 2)[0].last_tokens == last
            assert (child.state, child.finish_reason, child.is_merged) == ("finished", "stop", True)
            assert [start <= end for start, end in root.waits] == [True] and root.awaited == ()

    def test_a_child_that_was_cancelled_is_told_as_such(self) -> None:
        """While its parent goes on."""
        engine = SurgicalEngine(dataclasses.replace(LIVE, join_when=1))
        script = plan(r="!!.zzzz", r_child_0="L" * 40, r_child_1="V")
        with begun(engine, script, lambda: len(engine.live_tree("r", 100)[0].last_tokens) == 3):
            root, first, second = engine.live_tree("r", 100)
            assert (root.state, root.waits_for) == ("running", None)
            assert (first.state, first.finish_reason) == ("finished", "cancelled")
            assert (second.state, second.finish_reason) == ("finished", "stop")

    def test_what_was_replaced_is_told_as_such(self) -> None:
        """It is in the output, and not in the context."""
        engine = SurgicalEngine(dataclasses.replace(LIVE, handlers=tuple(REPLACING.items())))
        with begun(engine, plan(r="abcyzzz"), lambda: engine.live_tree("r", 100)[0].num_output_tokens > 5):
            told = engine.live_tree("r", 100)[0].last_tokens
            start, new = replacement_of(len("abc"), ReplacesLetters.words)
            assert [(each.is_replaced, len(each.token_ids)) for each in told if each.is_replaced] == [(True, 4 - start)]
            assert Tokens("inserted", None, tuple(new)) in told or not new

    def test_a_request_without_hooks_is_a_tree_of_one(self) -> None:
        """It waits until it has sampled something."""
        engine = SurgicalEngine(LIVE, max_num_seqs=1)
        for name in "rs":
            engine.add(name)
        script = plan(r="abc", s="d")
        engine.run_until(lambda: states_of(engine.live_tree("r", 100)) == {"r": "running"}, script)
        assert engine.live_tree("r", 100)[0].last_tokens == (Tokens("sampled", None, tuple(ids("a"))),)
        assert states_of(engine.live_tree("s", 100)) == {"s": "waiting"}
        engine.run(script)
        assert [(each.state, each.num_output_tokens) for each in engine.live_tree("r", 100)] == [("finished", 4)]


class TestRequests:
    def test_a_list_counts_states_and_tokens(self) -> None:
        """Of all sequences of each request."""
        engine, script = SurgicalEngine(MANUAL), plan(r="!.z", r_child_0="BC", s="abcdefghijklmn")
        for name in "rs":
            engine.add(name)
        engine.run_until(lambda: len(engine.live_requests(10, 100).requests[0].num_by_state) == 2, script)
        engine.run_until(lambda: engine.live_requests(10, 100).requests[0].num_by_state.get("finished") == 1, script)
        found = {each.request_id: each for each in engine.live_requests(10, 100).requests}
        assert found["r"].num_by_state == {"blocked": 1, "finished": 1}
        assert (found["r"].num_waiting_for_callers, found["r"].num_output_tokens) == (1, 5)
        assert (found["s"].num_by_state, found["s"].has_ended) == ({"running": 1}, False)
        engine.abort(["r", "s"])
        engine.assert_empty()

    def test_trees_that_have_ended_are_remembered(self) -> None:
        """With all that they had, the merged tokens among them; only so many."""
        engine = SurgicalEngine(LIVE)
        for number in range(22):
            engine.add(f"r{number}")
            engine.run(plan(**{f"r{number}": "!.z", f"r{number}_child_0": "BC"}))
        found = engine.live_requests(30, 100)
        assert (found.num_unfinished, len(found.requests)) == (0, 20)
        assert [each.request_id for each in engine.live_requests(2, 100).requests] == ["r20", "r21"]
        assert engine.live_requests(0, 100).requests == ()
        assert all(each.has_ended for each in found.requests)
        states = [(sequence.state, sequence.finish_reason) for sequence in engine.live_tree("r21", 100)]
        assert states == [("finished", "stop"), ("finished", "stop")]
        assert ids("BC") == [token for each in _merged(engine.live_tree("r21", 100)[0]) for token in each.token_ids]
        assert engine.live_tree("r0", 100) == ()

    def test_an_aborted_tree_is_remembered_as_aborted(self) -> None:
        """With what it had by then."""
        engine, script = SurgicalEngine(LIVE), plan(r="!.z", r_child_0="BCDEF")
        with begun(engine, script, lambda: engine.statuses().get("r") == "BLOCKED"):
            engine.abort(["r"])
        states = [(sequence.state, sequence.finish_reason) for sequence in engine.live_tree("r", 100)]
        assert states == [("finished", "abort"), ("finished", "abort")]

    def test_nothing_is_remembered_without_the_page(self) -> None:
        """It would be kept for nobody; of those that run no more are listed than asked for, and all are counted."""
        engine = SurgicalEngine(SYNC_HOOKS)
        for name in "rst":
            engine.add(name)
        found = engine.live_requests(2, 100)
        assert (found.num_unfinished, len(found.requests)) == (3, 2)
        engine.run({})
        assert engine.live_requests(10, 100) == LiveRequests(0, ())


def _merged(sequence: LiveSequence) -> list[Tokens]:
    return [each for each in sequence.last_tokens if each.origin == "merged"]
