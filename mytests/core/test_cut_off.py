# SPDX-License-Identifier: Apache-2.0
"""Prompts that end in an answer which was cut off, with P for a promise and S for a sync."""

from typing import Any

import pytest

from sequence_hooks import SpecialKwargs
from sequence_hooks.config.cut_off import check_cut_off
from sequence_hooks.config.limits import limits_of

OTHERS: dict[str, Any] = {"handlers": {5: f"{__name__}.told"}}
OPEN = {
    "promise": {"Pa.P": 3, "PaPr": None},
    "sync": {"aPb.cPdPe": 5, "aPbPS": 1, "aPbSr": None, "aPbSrS": None, "aPbSrPS": 5, "Pabcd": None},
}


def told(prompt: str, extra_args: Any, num_logprobs: int | None = None, **fields: Any) -> str | None:
    hooks = SpecialKwargs(**{"promise_token_id": ord("P"), "sync_token_id": ord("S"), **fields})
    return check_cut_off(hooks, limits_of(hooks, extra_args), num_logprobs, list(map(ord, prompt)))


@pytest.mark.parametrize("block_on", OPEN)
def test_an_open_promise_is_named(block_on: str) -> None:
    """By ``block_on``, among the last four tokens. Whoever cuts the prompt before it can go on."""
    for prompt, index in OPEN[block_on].items():
        asked = {"continues": 4}
        if index is not None:
            with pytest.raises(ValueError, match=f"continues is 4, and at index {index} a promise in a prompt"):
                told(prompt, asked, block_on=block_on)
            prompt, asked = prompt[:index], {"continues": max(0, 4 - len(prompt) + index)}
        assert told(prompt, asked, block_on=block_on) is None
    with pytest.raises(ValueError, match="continues is 4, and at index 1 a promise"):
        told("aPbbb", {"continues": 4}, block_on="never", sync_token_id=None)


def test_what_cannot_be_told_is_refused() -> None:
    """A wrong number, and hooks whose tokens say nothing about what was joined."""
    for asked, fields, message in (
        (3, {}, "continues is 3, and the prompt has 2 tokens; give the number of its last"),
        (10**5000, {}, "continues is <an integer of .* bits>, and the prompt has 2 tokens"),
        (True, {}, "continues is True; use an integer of at least 0"),
        (2, OTHERS, "this engine has hooks other than tokens for promise and sync"),
    ):
        with pytest.raises(ValueError, match=message):
            told("ab", {"continues": asked}, **fields)


def test_who_says_nothing_is_warned_or_refused() -> None:
    """Few-shot examples may have open promises, too; only log-probabilities make a trainer of a caller."""
    warning = told("aP", {}, flat_logprobs="refuse")
    assert warning == told("aP", {}) and warning is not None and "continues=0" in warning
    with pytest.raises(ValueError, match=r"^logprobs is 0, and at index 1 a promise .* say so by continues=0 in"):
        told("aP", {"reads_trees": 1}, 0, flat_logprobs="refuse")
    assert not any(told("aP", asked) for asked in ({"continues": 0}, {"hooks": 0}, {"max_child_depth": 0}))
    assert told("aP", {}, flat_logprobs="allow") is told("aP", {}, promise_token_id=None) is None
