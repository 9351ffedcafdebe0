# SPDX-License-Identifier: Apache-2.0
"""Faults of requests that are to end at their join."""

from mytests.fuzz.faults.fault import Edit, Engine, Fault, surgical

BOTH: tuple[Engine, ...] = ("fork", "plugin")
TESTS = "mytests/rules/test_end_at_join.py"

ENDS = (
    Fault(
        "it-goes-on-after-its-join",
        (Edit("sequence_hooks.tree.rules:join", "bool(children) and branch.stops_at_first_join", "False"),),
        "An answer prefills its points for a token that ends it.",
        surgical(f"{TESTS}::TestEnd::test_nothing_more_is_computed"),
        BOTH,
    ),
    Fault(
        "it-ends-at-a-join-of-nobody",
        (
            Edit(
                "sequence_hooks.tree.rules:join",
                "bool(children) and branch.stops_at_first_join",
                "branch.stops_at_first_join",
            ),
        ),
        "An answer ends before any child has written a part of it.",
        surgical(f"{TESTS}::TestEnd::test_a_join_of_no_child_is_none"),
        BOTH,
    ),
    Fault(
        "children-end-at-their-joins",
        (Edit("sequence_hooks.tree.branch:Branch.stops_at_first_join", "self.parent is None and ", ""),),
        "A child whose own children are joined writes nothing after them.",
        surgical(f"{TESTS}::TestTrees::test_children_go_on_after_theirs"),
        BOTH,
    ),
)
