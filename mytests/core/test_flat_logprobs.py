# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of a tree, asked for by a caller that may read them as one row."""

from typing import Any

import pytest

from sequence_hooks import SpecialKwargs
from sequence_hooks.config.limits import flat_reading, limits_of

READ_THEM = "Read them by sequence_hooks.training.token_trees and say so by reads_trees=1"


def told(num_logprobs: int | None, extra_args: dict[str, Any], **fields: Any) -> str | None:
    hooks = SpecialKwargs(sync_token_id=3, promise_token_id=2, **fields)
    return flat_reading(hooks, limits_of(hooks, extra_args), num_logprobs)


def test_the_log_says_how_to_read_them() -> None:
    """By default: an ordinary client that asks for them gets its answer."""
    warning = told(0, {})
    assert warning is not None and READ_THEM in warning and "flat_logprobs to 'allow'" in warning


@pytest.mark.parametrize(
    ("num_logprobs", "extra_args", "reading"),
    [(None, {}, "refuse"), (0, {"hooks": 0}, "refuse"), (5, {"reads_trees": 1}, "refuse"), (0, {}, "allow")],
    ids=["none asked for", "no tree", "a tree is read", "allowed"],
)
def test_nothing_is_said_where_nobody_can_go_wrong(num_logprobs: int | None, extra_args: Any, reading: str) -> None:
    """Or where an operator knows."""
    assert told(num_logprobs, extra_args, flat_logprobs=reading) is None


def test_they_may_be_refused() -> None:
    """The message has the field, its value and both ways out."""
    with pytest.raises(ValueError, match=rf"^logprobs is 0: .* {READ_THEM} .*, or leave logprobs out$"):
        told(0, {}, flat_logprobs="refuse")
