# SPDX-License-Identifier: Apache-2.0
"""Wrong states and wrong code that tests plant by themselves, to see that a check reports them."""

from mytests.fuzz.faults.fault import Engine, Fault, by_itself

FORK: tuple[Engine, ...] = ("fork",)
TREE = "mytests/core/test_tree.py::TestIntegrity"
SCHEDULER = "mytests/v0/test_scheduler.py::TestIntegrity"

CHECKS = (
    Fault(
        "misspelled-attributes",
        (),
        "A misspelled attribute of a sequence, a branch or a scheduler is found only where it is used.",
        by_itself("surgical", "mytests/project/test_typing.py::test_misspelled_attributes_are_reported"),
        FORK,
    ),
    Fault(
        "contradictory-branch",
        (),
        "Segments, joins, depth, phase or wait of a branch contradict its tree, and a later join merges wrong tokens.",
        by_itself("surgical", f"{TREE}::test_a_contradiction_is_told_with_all_trees"),
        FORK,
    ),
    Fault(
        "too-many-children",
        (),
        "A branch has more unfinished children than its limit.",
        by_itself("surgical", f"{TREE}::test_too_many_children_are_told"),
        FORK,
    ),
    Fault(
        "finished-and-unsettled",
        (),
        "A finished branch is still to be looked at, and nobody would ever join it.",
        by_itself("surgical", f"{TREE}::test_the_finished_are_not_looked_at"),
        FORK,
    ),
    Fault(
        "status-of-another-queue",
        (),
        "A sequence is in a queue that is not that of its status, so that nobody schedules it.",
        by_itself("surgical", f"{SCHEDULER}::test_a_status_that_is_not_its_queues_is_told"),
        FORK,
    ),
    Fault(
        "blocked-for-the-queues-alone",
        (),
        "A sequence is BLOCKED, and its tree doesn't know, so that it is never joined.",
        by_itself("surgical", f"{SCHEDULER}::test_queues_and_trees_have_the_same_sequences_blocked"),
        FORK,
    ),
    Fault(
        "block-without-a-holder",
        (),
        "A block is neither free nor held, and the pool shrinks.",
        by_itself("surgical", f"{SCHEDULER}::test_a_block_that_nobody_holds_is_told"),
        FORK,
    ),
    Fault(
        "stray-requests",
        (),
        "A request is in no queue, or BLOCKED for the scheduler alone, and never goes on.",
        by_itself("surgical", "mytests/v1/test_corners.py::test_strays_are_found"),
    ),
)
