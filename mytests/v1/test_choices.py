# SPDX-License-Identifier: Apache-2.0
"""Who gives up its row or its KV on V1, on plain values.

`mytests/core/test_fairness.py` has how rows are shared, `mytests/v1/test_random_walks.py` what all of it comes to.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from mytests.harness.injecting import SYNC_INJECT
from mytests.harness.surgical import SurgicalEngine, finished, plan
from sequence_hooks.kv.eviction import EvictionCandidate
from sequence_hooks.v1.core.eviction import KVEvictor


def held_by(num_tokens: int) -> EvictionCandidate[Any]:
    """A sequence with so many tokens."""
    fields: dict[str, Any] = {"priority": 0, "num_all": 2, "num_owned": 2, "block_size": 4}
    return EvictionCandidate(holder=MagicMock(), num_computed_tokens=num_tokens, **fields)


class TestEvictor:
    def test_it_counts_all(self) -> None:
        """Evictions, and the tokens whose KV is gone."""
        evictor = KVEvictor(MagicMock(), "discard", MagicMock())
        for num_tokens in (5, 3):
            evictor.note(held_by(num_tokens))
        assert (evictor.evictions, evictor.num_recomputed) == ({"discard": 2}, 8)

    def test_a_group_of_layers_may_hold_nothing_of_a_sequence(self) -> None:
        """Null blocks are nobody's; the others may be shared."""
        null, shared, own = ((True, 1), (False, 2), (False, 1))
        blocks = [SimpleNamespace(is_null=is_null, ref_cnt=count) for is_null, count in (null, shared, own)]
        tables: Iterable[dict[str, Any]] = ({"r": blocks}, {})
        managers = [SimpleNamespace(req_to_blocks=each, block_size=4) for each in tables]
        manager: Any = SimpleNamespace(coordinator=SimpleNamespace(single_type_managers=managers))
        request: Any = SimpleNamespace(request_id="r", priority=1, num_computed_tokens=9)
        candidate = KVEvictor(manager, "discard", MagicMock()).candidate(request)
        assert candidate == EvictionCandidate(request, 1, 2, 1, 4, 9)


@pytest.mark.usefixtures("each_mode")
def test_of_kept_kv_all_but_a_busy_parents_may_be_evicted() -> None:
    """Whoever copies it is busy."""
    engine = SurgicalEngine(SYNC_INJECT)
    for name in "rs":
        engine.add(name, prompt="p" * 3)
    children = {"r_child_0": "AB", "s_child_0": "CDE", "r_child_1": "W" * 9, "s_child_1": "W" * 9}
    script = plan(r="!!.y", s="!!.z", **children)
    engine.run_until(lambda: sorted(engine.statuses()) == ["r", "r_child_1", "s", "s_child_1"], script)
    kept = engine.scheduler.kv.kept
    everybody = [(each.holder.request_id, each.num_computed_tokens) for each in kept.candidates(())]
    assert dict(everybody) == {"r_child_0": 2, "s_child_0": 3}
    busy = [engine.request_of("r")]
    assert [each.holder.request_id for each in kept.candidates(busy)] == ["s_child_0"]
    engine.run(script)
    assert finished(engine, "s").text == "CDE\n" + "W" * 9 + "z"
    engine.assert_empty()
