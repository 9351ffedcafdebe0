# SPDX-License-Identifier: Apache-2.0
"""The client that `make bench` measures hooks against, on an engine with scripted tokens."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.forkjoin import ways
from benchmarks.forkjoin.engine import LONGEST, Run
from benchmarks.forkjoin.plans import Plan, Script, Tokens


class ScriptedEngine:
    """Runs one request after the other, the newest first, so that children finish in the wrong order."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[int, ...]] = {}
        self.most_trees = 0
        self._waiting: deque[tuple[str, Any]] = deque()
        self.num_rounds = 0

    def start(self) -> None:
        """See `Observed.start`."""

    def finish(self) -> Run:
        """See `Observed.finish`."""
        return Run()

    def end_round(self) -> None:
        """See `Observed.end_round`."""
        self.num_rounds += 1

    def add(self, request_id: str, prompt: tuple[int, ...], script: Script, max_tokens: int = LONGEST) -> None:
        """See `Observed.add`."""
        self.requests[request_id] = prompt
        self._waiting.append((request_id, script.output))

    def drain(self, then: Callable[[str, tuple[int, ...]], None]) -> dict[str, tuple[int, ...]]:
        """See `Observed.drain`."""
        outputs = {}
        while self._waiting:
            self.most_trees = max(self.most_trees, len({name.partition("/")[0] for name, _ in self._waiting}))
            name, outputs[name] = self._waiting.pop()
            then(name, outputs[name])
        return outputs


@pytest.fixture
def engine() -> Any:
    return ScriptedEngine()


def test_each_request_has_the_context_that_hooks_would_have(engine: Any) -> None:
    """A child has the prompt, the lead and its mark; the tail has all results in spawn order, without their ends."""
    plan = Plan(16, (3, 4), lead=2, tail=2)
    ways.by_client(engine, plan, seed=1)
    tokens = Tokens.of(plan, seed=1)
    context = (*tokens.prompt, *tokens.lead)
    first, second = tokens.children
    assert engine.requests == {
        "request-0-2/lead": tokens.prompt,
        "request-0-2/0": (*context, tokens.marks[0]),
        "request-0-2/1": (*context, tokens.marks[1]),
        "request-0-2/tail": (*context, *first[:-1], *second[:-1]),
    }
    assert engine.num_rounds == 2


def test_no_more_trees_at_once_than_the_cache_can_hold(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next tree starts only when one has ended."""
    monkeypatch.setattr(ways, "MAX_CLIENT_TREES", 3)
    ways.by_client(engine, Plan(16, (3, 4), lead=2, tail=2, num_requests=7), seed=1)
    assert engine.most_trees == 3
    assert len(engine.requests) == 7 * 4
