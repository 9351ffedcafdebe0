# SPDX-License-Identifier: Apache-2.0
"""Under which weights tokens were sampled, as a front end counts and tells it."""

from mytests.harness.plain import LIMITS, PlainSequence, Trees, child_of, handler
from sequence_hooks.results import Segment
from sequence_hooks.tree.transcript import output_of
from sequence_hooks.tree.weights import Weights


def test_segments_are_cut_where_the_version_changes() -> None:
    """Tokens before the first known version, and those that nobody has sampled, have none."""
    trees, weights = Trees(), Weights(has_older_kv=True)
    child = child_of(trees, trees.add_root(PlainSequence(), LIMITS), handler(), [1, 2, 3])
    assert output_of(child).segments == (Segment(0, 3, "sampled"),)
    for version, position in ((None, 0), ("a", 1), ("a", 2), ("b", 4), (None, 5)):
        weights.note(version, position)
    child.sequence.weights = weights
    parts = [(each.start, each.end, each.weight_version) for each in output_of(child).segments]
    assert (parts, output_of(child).has_older_kv) == ([(0, 1, None), (1, 3, "a")], True)
    told = weights.labelled([Segment(3, 5, "merged", "c"), Segment(5, 7, "inserted"), Segment(7, 8, "sampled")])
    assert [(each.start, each.weight_version) for each in told] == [(3, "a"), (4, "b"), (5, None), (7, "b")]
