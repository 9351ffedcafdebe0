# SPDX-License-Identifier: Apache-2.0
"""Under which weights tokens were sampled, as a front end counts and tells it."""

from mytests.harness.plain import LIMITS, PlainSequence, Trees, child_of, handler
from sequence_hooks.results import Segment
from sequence_hooks.tree.transcript import output_of, told_segments
from sequence_hooks.tree.weights import Weights

SEGMENTS = (Segment(0, 3, "sampled"), Segment(3, 5, "merged", "c"), Segment(5, 7, "inserted"), Segment(7, 8, "sampled"))


def test_segments_are_cut_where_the_version_changes() -> None:
    """Tokens that nobody has sampled have none, and those before the first known one are of an unknown one."""
    weights = Weights()
    for version, position in ((None, 0), ("a", 1), ("a", 2), ("b", 4), (None, 5), ("b", 7)):
        weights.note(version, position)
    assert weights.starts == [("a", 1), ("b", 4)]
    told = [(each.start, each.end, each.origin, each.weight_version) for each in weights.labelled(SEGMENTS)]
    sampled, merged = "sampled", "merged"
    assert told == [
        *((0, 1, sampled, None), (1, 3, sampled, "a"), (3, 4, merged, "a"), (4, 5, merged, "b")),
        *((5, 7, "inserted", None), (7, 8, sampled, "b")),
    ]


def test_a_child_is_told_with_its_weights() -> None:
    """Where an engine counts no versions, segments are as they are."""
    trees = Trees()
    child = child_of(trees, trees.add_root(PlainSequence(), LIMITS), handler(), [1, 2])
    assert output_of(child).segments == told_segments(child) == (Segment(0, 2, "sampled"),)
    child.sequence.weights = Weights([("a", 0)], has_older_kv=True)
    told = output_of(child)
    assert (told.segments, told.has_older_kv) == ((Segment(0, 2, "sampled", weight_version="a"),), True)
