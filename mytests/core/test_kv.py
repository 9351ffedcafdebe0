# SPDX-License-Identifier: Apache-2.0
"""KV of forked and joined sequences: what an injection copies and prefills, and who gives KV up."""

from typing import Any

import pytest

from sequence_hooks.config.choices import BlockedKVPolicy
from sequence_hooks.kv.eviction import EvictionCandidate, EvictionCosts, choose, cuts_indivisible
from sequence_hooks.kv.transfer import Run, slot_of
from sequence_hooks.tree.injection_plan import (
    Context,
    InjectedKV,
    KVCopy,
    Source,
    num_computed_alike,
    plan_injection,
)
from sequence_hooks.tree.merge import Span
from sequence_hooks.tree.positions import PLAIN, ChildPositions, Positions, overlapping

PARENT = Context(num_tokens=7, num_computed=6, injected=None)
"""``p p p p P P S``: two promises, and a sync token whose KV is not computed yet."""

SPANS = [
    Span((20, 21, 22, 23), "a", range(4)),
    Span((99,)),
    Span((30, 31, 32), "b", range(3)),
]
STRANDS = {"a": ChildPositions(5, PLAIN), "b": ChildPositions(6, PLAIN)}
OVERLAPPING = overlapping(PLAIN, 7, SPANS, STRANDS)


def sources(a: int = 9, b: int = 9) -> dict[str, Source]:
    """How many tokens of each child have KV."""
    return {"a": Source(STRANDS["a"], a), "b": Source(STRANDS["b"], b)}


def planned(positions: Positions = PLAIN, **changes: Any) -> InjectedKV:
    given: dict[str, Any] = {"parent": PARENT, "spans": SPANS, "sources": sources(), **changes}
    injected = plan_injection(**given, positions=positions)
    assert injected is not None
    return injected


class TestPlan:
    def test_it_is_as_its_picture(self) -> None:
        """Index by index: what is injected, what is glue, and the positions of "overlap"."""
        injected = planned()
        assert [copy.parent_index for copy in injected.copies] == [7, 8, 9, 10, 12, 13]
        assert (injected.glue, injected.start, injected.end) == ([6, 11, 14], 7, 15)
        assert planned(OVERLAPPING).glue == injected.glue
        assert [OVERLAPPING.of(index) for index in range(6, 16)] == [6, 5, 6, 7, 8, 9, 6, 7, 8, 10]

    def test_what_a_child_has_not_computed_is_glue(self) -> None:
        """Its last token, or all of it if its KV was given up."""
        assert planned(sources=sources(a=7)).glue == [6, 9, 10, 11, 14]
        assert plan_injection(PARENT, SPANS, sources(0, 0), PLAIN) is None

    def test_a_second_injection_goes_on_from_the_first(self) -> None:
        """With its start."""
        parent, below = Context(num_tokens=17, num_computed=16, injected=planned()), ChildPositions(16, OVERLAPPING)
        spans = [Span((40, 41), "c", range(2))]
        positions = overlapping(OVERLAPPING, 17, spans, {"c": below})
        second = planned(positions, parent=parent, spans=spans, sources={"c": Source(below, 18)})
        assert (second.start, second.end, second.glue) == (7, 19, [16, 18])
        assert second.copies == [KVCopy("c", 16, 17, 11, 11)]

    def test_runs_are_consecutive_glue_of_one_offset(self) -> None:
        """And are taken once."""
        injected = planned()
        assert injected.take_runs(3, OVERLAPPING) == (Run(6, 7, 0), Run(11, 12, -2), Run(14, 15, -6))
        assert injected.take_runs(3, OVERLAPPING) == ()
        consecutive, positions = InjectedKV(5, 10, glue=[3, 4, 7, 8, 9]), Positions([0, 8], [0, -1])
        assert consecutive.take_runs(2, positions) == (Run(3, 5, 0),)
        assert consecutive.glue == [7, 8, 9]
        assert consecutive.take_runs(3, positions) == (Run(7, 8, 0), Run(8, 10, -1))

    def test_what_is_computed_like_any_prefill(self) -> None:
        """Nothing from the first injected token on, nor from the first glue."""
        assert num_computed_alike(9, None) == 9
        injected = planned()
        assert num_computed_alike(15, injected) == 6
        injected.take_runs(3, PLAIN)
        assert num_computed_alike(15, injected) == 7
        assert num_computed_alike(3, injected) == 3

    def test_it_is_kept_as_a_whole(self) -> None:
        """All of the context while there is glue, then up to the end of the join."""
        injected = planned()
        assert injected.num_indivisible > 1_000_000
        injected.take_runs(3, PLAIN)
        assert injected.num_indivisible == 15


COSTS = EvictionCosts(per_token=1.0, per_block=3.0)


def candidate(name: str, **changes: Any) -> EvictionCandidate[str]:
    """Four blocks of eight tokens, of which two are its own; 30 tokens are computed."""
    given = {"priority": 0, "num_all": 4, "num_owned": 2, "block_size": 8, "num_computed_tokens": 30}
    return EvictionCandidate(name, **{**given, "num_indivisible_tokens": 0, "can_swap": False, **changes})


def victim(
    policy: BlockedKVPolicy, *candidates: EvictionCandidate[str], num_wanted: int = 1, costs: EvictionCosts = COSTS
) -> Any:
    eviction = choose(candidates, policy, num_wanted, costs)
    return (
        None if eviction is None else (eviction.candidate.holder, eviction.means, eviction.num_gained, eviction.seconds)
    )


class TestPressure:
    @pytest.mark.parametrize(
        ("candidates", "num_wanted", "expected"),
        [
            # Least waste per block is chosen: the last block of a sequence that has computed little of it.
            ([candidate("a", num_computed_tokens=32), candidate("b")], 1, ("b", "discard", 1, 6.0)),
            # Among equals the first is, as the engine prefers, and the least urgent before, whatever it wastes.
            ([candidate("a"), candidate("b")], 1, ("a", "discard", 1, 6.0)),
            ([candidate("a"), candidate("b", priority=1, num_computed_tokens=32)], 1, ("b", "discard", 1, 8.0)),
            # No more is discarded than is wanted or owned. Shared blocks gain nothing.
            ([candidate("a")], 9, ("a", "discard", 2, 14.0)),
            ([candidate("a", num_owned=0)], 1, None),
            ([], 1, None),
            # A block that is allocated and not computed yet wastes nothing.
            ([candidate("a", num_computed_tokens=20)], 1, ("a", "discard", 1, 0.0)),
        ],
    )
    def test_who_gives_up_what(self, candidates: list[Any], num_wanted: int, expected: Any) -> None:
        """Its name, by what means, how many blocks, and the cost."""
        assert victim("auto", *candidates, num_wanted=num_wanted) == expected

    @pytest.mark.parametrize(
        ("policy", "can_swap", "expected"),
        [
            ("swap", True, ("a", "swap", 2, 24.0)),
            ("swap", False, ("a", "discard", 1, 6.0)),
            ("discard", True, ("a", "discard", 1, 6.0)),
            ("auto", True, ("a", "discard", 1, 6.0)),
        ],
    )
    def test_the_policy_says_by_what_means(self, policy: BlockedKVPolicy, can_swap: bool, expected: Any) -> None:
        """A swap copies all blocks out and back in."""
        assert victim(policy, candidate("a", can_swap=can_swap)) == expected

    def test_a_cheap_swap_is_chosen(self) -> None:
        """Two blocks for the price of one."""
        assert victim("auto", candidate("a", can_swap=True), costs=EvictionCosts(1.0, 0.5)) == ("a", "swap", 2, 4.0)

    def test_what_is_kept_as_a_whole_is_given_up_as_a_whole(self) -> None:
        """All computed tokens are recomputed if a part of them would be cut."""
        assert victim("discard", candidate("a", num_indivisible_tokens=25)) == ("a", "discard", 1, 30.0)
        assert victim("discard", candidate("a", num_indivisible_tokens=24)) == ("a", "discard", 1, 6.0)
        assert cuts_indivisible(candidate("a", num_indivisible_tokens=25), 1)
        assert not cuts_indivisible(candidate("a", num_indivisible_tokens=24), 1)


def test_slots_are_places_in_blocks() -> None:
    """By the block table."""
    assert [slot_of([5, 2], 4, index) for index in (0, 3, 4, 6)] == [20, 23, 8, 10]
