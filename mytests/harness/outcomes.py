# SPDX-License-Identifier: Apache-2.0
"""Tables of rules: in each row a request with what its sequences sample, and what it comes to."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mytests.harness.surgical import HOOKS, SpecialKwargs, SurgicalEngine, completed, tree

LONG = "L" * 40
"""What a child samples that has not finished when its parent goes on, or ends, without it."""

ENDS = {
    ("stop", False, False): "stop",
    ("length", False, False): "length",
    ("cancelled", True, False): "cancelled",
    # It has ended by itself, and its result stands nowhere.
    ("stop", True, False): "late",
    ("abort", True, True): "aborted",
    ("abort", False, True): "failed",
}
"""By their finish reasons, whether children were cancelled, and whether they failed."""


def ends(output: Any) -> str:
    """How the children of a completion, or of a child, have ended."""
    return " ".join(ENDS[child.finish_reason, child.cancelled, child.failed] for child in output.children)


READERS: dict[str, Callable[[Any], Any]] = {
    "ends": ends,
    "below": lambda output: ends(output.children[0]),
    "of_children": lambda output: [child.text for child in output.children],
    "num_children": lambda output: len(output.children),
    "num_tokens": lambda output: len(output.token_ids),
    "merged": lambda output: [join.num_merged for join in output.joins],
    "prefilled": lambda output: [join.num_prefill for join in output.joins],
    "cut": lambda output: [join.num_cut for join in output.joins],
    "origins": lambda output: [segment.origin for segment in output.segments],
    "of_segments": lambda output: [segment.child for segment in output.segments],
    "sampled_text": lambda output: output.sampled.text,
}
"""What else is read of a completion than its own attributes."""


class Case:
    """A request, with texts as `tree` takes them, and what is expected: attributes, or what `READERS` read."""

    def __init__(
        self,
        hooks: SpecialKwargs = HOOKS,
        *texts: Any,
        prompt: str = "prompt",
        params: Mapping[str, Any] | None = None,
        sizes: Mapping[str, Any] | None = None,
        **expected: Any,
    ) -> None:
        self._hooks, self._sizes, self.expected = hooks, sizes or {}, expected
        self._request: dict[str, Any] = {"prompt": prompt, "params": params, **tree(*texts)}

    def check(self) -> Any:
        """Run it, and compare; returns the completion."""
        output = completed(SurgicalEngine(self._hooks, **self._sizes), **self._request)
        found = {name: READERS[name](output) if name in READERS else getattr(output, name) for name in self.expected}
        assert found == self.expected, found
        return output


def assert_released(branch: Any) -> None:
    """Nobody can read the context of a sequence any more."""
    with pytest.raises(LookupError, match=r"context .*is not kept"):
        branch.sequence.prompt_token_ids[0]


def rules(rows: Mapping[str, Case]) -> pytest.MarkDecorator:
    """A test of the argument ``case`` for each of the rows, by whose names it is known."""
    return pytest.mark.parametrize("case", rows.values(), ids=rows)
