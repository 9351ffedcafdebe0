# SPDX-License-Identifier: Apache-2.0
"""The queue from which upstream admits sequences of trees; `mytests/core/test_fairness.py` has the order of trees."""

from typing import Any

import pytest

from mytests.harness.hooks import SYNC_HOOKS
from mytests.harness.plain import LIMITS, PlainSequence, Trees
from mytests.harness.surgical import SurgicalEngine, plan
from mytests.harness.v1.releases import since
from sequence_hooks.v1.core.admission import TreeAdmission
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import FCFSRequestQueue


class Queue(TreeAdmission):
    """Requests are their own names, those of trees in capitals; a letter with a stroke is glue of the letter's."""

    def __init__(self, names: str) -> None:
        plain, self.by_name = Trees(), dict[Any, Any]()
        for name in "ABC":
            self.by_name[name] = self.by_name[name + "'"] = plain.add_root(PlainSequence(name), LIMITS)
            self.by_name[name].sequence.request = name
        nothing: Any = {}
        super().__init__(FCFSRequestQueue(), FCFSRequestQueue(), nothing, nothing, nothing, nothing, False)
        for name in names:
            self.add_request(name)  # type: ignore[arg-type]

    def _branch_of(self, request: Any) -> Any:
        return self.by_name.get(request)

    def _has_kv(self, request: Any) -> bool:
        return True


def names(queue: Queue) -> str:
    """Those who wait, in order."""
    return "".join(map(str, queue))


def test_what_has_no_tree_goes_first() -> None:
    """Upstream keeps it in its place, and asks before it admits anybody."""
    queue: Any = Queue("AxBy")
    assert (names(queue), len(queue), queue.peek_request()) == ("xyAB", 4, "x")
    queue.prepend_request("z")
    assert [queue.pop_request() for _ in range(5)] == ["z", "x", "y", "A", "B"]
    assert not queue and not len(queue)
    with pytest.raises(IndexError, match=r"^no sequence of a tree may be admitted$"):
        queue.peek_request()


def test_who_leaves_is_told_from_others() -> None:
    """One by one, or several at once."""
    queue: Any = Queue("AxByCz")
    left = []
    for leaving in (["x"], ["A"], ["z", "C"], ["B"], ["y"]):
        queue.remove_request(*leaving) if len(leaving) == 1 else queue.remove_requests(leaving)
        left.append(names(queue))
    assert left == ["yzABC", "yzBC", "yB", "y", ""]


def test_who_has_been_admitted_runs_and_glue_does_not() -> None:
    """It runs for its owner, which counts."""
    queue: Any = Queue("A")
    assert (queue.pop_request(), queue.order.share_of("A").num_running) == ("A", 1)
    queue.add_request("A'")
    assert (queue.pop_request(), queue.order.share_of("A'")) == ("A'", None)


def test_what_a_connector_has_loaded_goes_first() -> None:
    """Also once it was passed over: nobody else can have its blocks, and whoever needs them would wait forever."""
    queue: Any = Queue("A")
    queue._new.add_request("x")
    queue.shortage.is_urgent = True
    found = []
    for loading in ("B", ""):
        queue._is_loading = loading.__contains__
        queue.prepend_requests("BC")
        found += [bool(queue), queue.pop_request(), bool(queue)]
    queue.prepend_request("B")
    queue.leave("B")
    assert [*found, bool(queue)] == [True, "B", False, True, "B", False, False]


@since(32, "a paused engine admits nothing")
def test_what_may_not_be_admitted_holds_nothing_back() -> None:
    """While upstream admits no new request, a child runs beside its parent, though one waits that has no row."""
    engine = SurgicalEngine(SYNC_HOOKS, max_num_seqs=2)
    script = plan(r="a!bcdefgh.i", r_child_0="AAA", q="Q")
    engine.add("r")
    engine.step(script)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    engine.add("q")
    engine.run_until(lambda: engine.statuses().get("r_child_0") == "RUNNING", script)
    assert engine.statuses() == {"r": "RUNNING", "r_child_0": "RUNNING", "q": "WAITING"}
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run(script)
