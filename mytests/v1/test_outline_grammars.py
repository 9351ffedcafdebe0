# SPDX-License-Identifier: Apache-2.0
"""The grammars of outlines, which an engine compiles when its server starts."""

from concurrent.futures import Future
from copy import copy
from typing import Any

from mytests.harness.v1.configuration import base_config
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.serving.outlines.requests import regexes
from sequence_hooks.v1 import engine_args
from sequence_hooks.v1.core.children import ChildRequests

SKELETON = SpecialKwargs(protocol="skeleton", max_children=3)


class Grammars:
    """Upstream's manager of grammars: compiles them in a thread, some of them later, and one never."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def grammar_init(self, request: Any) -> None:
        wanted, compiling = request.structured_output_request, Future[Any]()
        self.asked.append(wanted.params.regex)
        if len(self.asked) == 1:
            compiling.set_exception(RuntimeError())
        else:
            compiling.set_result("compiled")
        wanted.grammar = compiling


def test_a_client_waits_for_none() -> None:
    """All that requests may need are compiled; one that cannot be is told to whoever asks for it."""
    config, grammars = copy(base_config()), Grammars()
    config.additional_config = engine_args(SKELETON)["additional_config"]
    ChildRequests.of(config, grammars, tokenizer=None).compile(regexes(SKELETON))  # type: ignore[arg-type]
    assert grammars.asked == regexes(SKELETON)
