# SPDX-License-Identifier: Apache-2.0
"""Join functions that a user could have written, good ones and bad ones."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mytests.harness.handlers import hooks_with
from mytests.harness.plain import Unshowable
from mytests.harness.surgical import SpecialKwargs
from sequence_hooks.handlers import Merged
from sequence_hooks.results import ChildOutput


def joined_by(name: str) -> SpecialKwargs:
    return hooks_with(child_merge_strategy=f"{__name__}.{name}")


def shout(children: Sequence[ChildOutput]) -> str:
    return "+".join(child.text.upper() for child in children)


def backwards(children: Sequence[ChildOutput]) -> list[int]:
    return list(children[-1].result_token_ids)[::-1]


def mixed(children: Sequence[ChildOutput]) -> Merged:
    return ["<", children[1], ord("|"), ord("|"), children[0], ">"]


def stranger(children: Sequence[ChildOutput]) -> list[ChildOutput]:
    return [dataclasses.replace(children[0], request_id="nobody")]


def midway(children: Sequence[ChildOutput]) -> Iterator[int]:
    yield 65
    raise RuntimeError("no second one")


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises ``error``, whatever it is given."""

    def fail(*given: object) -> Any:
        raise error

    return fail


fail = raising(KeyError("no such child"))
leave = raising(SystemExit())
unshowable = raising(Unshowable())


def returning(value: Any) -> Callable[..., Any]:
    """A function that returns ``value``, whatever it is given."""
    return lambda *given: value


class Text(str):
    """A user-defined subclass of `str`."""


none, truth, floats, endless = map(returning, (None, [True], [7.0], itertools.repeat(65)))
edges, past_the_end, outside = map(returning, ([0, 99], [100], [-7]))
arrays, own_text = returning(np.array([65, 66])), returning(Text("AB"))
unspeakable = returning("\u1000")
"""A text whose tokens lie outside the vocabulary."""
