# SPDX-License-Identifier: Apache-2.0
"""The configuration without an engine; what an engine checks beyond it has its tests beside the engine."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import sequence_hooks
from mytests.harness.plain import Tokenizer
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.refusals import layers_not_injected, not_causal, not_shared
from sequence_hooks.config.tokens import with_token_ids
from sequence_hooks.handlers import Spawn
from sequence_hooks.tree.ids import check_request_id, child_id, root_id
from sequence_hooks.tree.log import OncePerRequest


@pytest.mark.parametrize("overrides", [5, "hot", ("temperature", 1)])
def test_overrides_are_parameters(overrides: Any) -> None:
    """Of whatever class, as long as they can be cloned; or a mapping."""
    with pytest.raises(ValueError, match=r"sampling_params is .*give a SamplingParams, or a dict of its fields"):
        Spawn((), overrides)


def test_the_ids_of_children() -> None:
    """Derived from their parents', whom others may not be mistaken for."""
    assert child_id(child_id("r", 0), 12) == "r_child_0_child_12"
    assert root_id("r_child_0_child_12") == "r"
    check_request_id("r_child_")
    check_request_id("r" * 1000)
    with pytest.raises(ValueError, match=r"request_id is 'r+\.\.\.r+', of 1001 characters; use at most 1000$"):
        check_request_id("r" * 1001)
    with pytest.raises(ValueError, match=r"request_id is 'r\\ud800'; give a text that can be encoded as UTF-8"):
        check_request_id("r\ud800")
    with pytest.raises(ValueError, match=r"request_id is 'r_child_7', and .* those of children; choose another"):
        check_request_id("r_child_7")


def test_errors_say_what_to_do() -> None:
    """With the field, the value and the way out, word for word."""
    with pytest.raises(ValueError) as error:
        with_token_ids(SpecialKwargs(promise_token="no"), Tokenizer())
    assert str(error.value) == (
        "special_kwargs: promise_token has 'no', which is 2 tokens [110, 111] of the model's tokenizer; use a text "
        "that is one token of its own, add it to the tokenizer as a special token, or set trigger_by='text'"
    )
    with pytest.raises(ValueError, match=r"^special_kwargs: handlers has 'no', which is 2 tokens"):
        with_token_ids(SpecialKwargs(handlers={"no": "mytests.harness.plain.handler"}), Tokenizer())


def test_a_request_may_have_the_id_of_an_older_one() -> None:
    """Then it is told of anew."""
    logged_requests = OncePerRequest()
    assert [logged_requests.is_first(name) for name in ("r", "r_child_0", "s")] == [True, False, True]
    logged_requests.forget("r")
    logged_requests.forget("unknown")
    assert [logged_requests.is_first(name) for name in ("r", "s")] == [True, False]


@pytest.mark.parametrize("message", [partial(not_shared, "mamba"), not_causal, partial(layers_not_injected, "mamba")])
def test_a_refusal_of_layers_names_one_if_it_is_known(message: Callable[..., str]) -> None:
    """A configuration tells their kind alone, and a worker the first of them."""
    assert ", as layer 3 " in message(layer="layer 3")
    assert ", as " not in message()


def test_the_package_has_what_it_exports_alone() -> None:
    """It loads `SpecialKwargs` only when that is asked for."""
    assert sequence_hooks.SpecialKwargs is SpecialKwargs
    with pytest.raises(AttributeError, match="module 'sequence_hooks' has no attribute 'SpecialArgs'"):
        sequence_hooks.SpecialArgs  # noqa: B018
