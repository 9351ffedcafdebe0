# SPDX-License-Identifier: Apache-2.0
"""A joined child keeps only its output, in the core; `mytests/rules/test_forgotten.py` measures it everywhere."""

import dataclasses

import pytest

from mytests.v1.surgical import SYNC_HOOKS, SurgicalEngine, finished, plan


def test_a_joined_child_has_no_context() -> None:
    """In the core; neither has a grandchild, also of a child that was aborted."""
    engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, max_child_depth=2))
    engine.add()
    script = plan(r="!.z", r_child_0="!xxx", r_child_0_child_0="yyyy")
    engine.run_until(lambda: "r_child_0_child_0" in engine.statuses(), script)
    root = engine.scheduler.branches.get("r")
    assert root is not None
    (child,) = root.children
    engine.abort("r_child_0")
    engine.run_until(lambda: engine.num_sampled("r") == 3, script)
    for branch in [child, *child.children]:
        with pytest.raises(LookupError, match="has been joined, and its context is not kept"):
            branch.sequence.prompt_token_ids  # noqa: B018
    engine.run(script)
    assert finished(engine).children[0].failed
    engine.assert_empty()
