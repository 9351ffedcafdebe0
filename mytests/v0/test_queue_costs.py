# SPDX-License-Identifier: Apache-2.0
"""What a change of queue costs, however many groups are set aside."""

from typing import Any

import pytest

from mytests.harness.surgical import SurgicalEngine, plan
from vllm.sequence import SequenceGroup


def test_no_event_looks_at_the_groups_that_it_does_not_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that wait for a slot or children are never compared with others, so their number costs nothing."""
    compared: list[str] = []

    def note(self: SequenceGroup, other: object) -> Any:
        compared.append(self.request_id)
        return NotImplemented

    engine = SurgicalEngine(max_num_seqs=2, num_blocks=256)
    for index in range(8):
        engine.add(f"r{index}")
    monkeypatch.setattr(SequenceGroup, "__eq__", note)
    scripts = {f"r{index}": "a!b" for index in range(8)} | {f"r{index}_child_0": "AB" for index in range(8)}
    engine.run(plan(**scripts))
    # Upstream searches its deque of running groups, which holds at most as many as there are rows.
    assert len(compared) <= 8 * 2
    engine.assert_empty()
