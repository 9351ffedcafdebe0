# SPDX-License-Identifier: Apache-2.0
"""Join functions that a user could have written, good ones and bad ones."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mytests.harness.handlers import hooks_with
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


def fail(children: Sequence[ChildOutput]) -> str:
    raise KeyError("no such child")


def edges(children: Sequence[ChildOutput]) -> list[int]:
    return [0, 99]


def past_the_end(children: Sequence[ChildOutput]) -> list[int]:
    return [100]


def unspeakable(children: Sequence[ChildOutput]) -> str:
    """A text whose tokens lie outside the vocabulary."""
    return "\u1000"


def outside(children: Sequence[ChildOutput]) -> list[int]:
    return [-7]


def none(children: Sequence[ChildOutput]) -> None:
    """A join function that forgets to return."""


def truth(children: Sequence[ChildOutput]) -> list[int]:
    return [True]


def floats(children: Sequence[ChildOutput]) -> list[float]:
    return [7.0]


def stranger(children: Sequence[ChildOutput]) -> list[ChildOutput]:
    return [dataclasses.replace(children[0], request_id="nobody")]


def midway(children: Sequence[ChildOutput]) -> Iterator[int]:
    yield 65
    raise RuntimeError("no second one")


def endless(children: Sequence[ChildOutput]) -> Iterator[int]:
    return itertools.repeat(65)


def leave(children: Sequence[ChildOutput]) -> str:
    raise SystemExit


class Unshowable(Exception):
    """An exception whose message raises, too."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def unshowable(children: Sequence[ChildOutput]) -> str:
    raise Unshowable


def arrays(children: Sequence[ChildOutput]) -> Any:
    return np.array([65, 66])


class Text(str):
    """A user-defined subclass of `str`."""


def own_text(children: Sequence[ChildOutput]) -> str:
    return Text("AB")
