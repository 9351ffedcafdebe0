# SPDX-License-Identifier: Apache-2.0
"""A part of a list of tokens that others own, for the core and, in what it tells them, for its workers."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np


class TokenView(Sequence[int]):
    """The tokens of ``token_ids`` from ``start`` to ``end``, not copied; without an end it grows as they do.

    Pickled together, views of one list have one list.
    """

    def __init__(self, token_ids: Sequence[int], start: int, end: int | None = None) -> None:
        self._token_ids = token_ids
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return (len(self._token_ids) if self._end is None else self._end) - self._start

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._token_ids[self._start : self._end][index]
        if not -len(self) <= index < len(self):
            raise IndexError(f"token {index} of {len(self)}")
        return self._token_ids[self._start + index % len(self)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype=dtype)

    def copy(self) -> "TokenView":
        """The view itself, which nobody changes: upstream copies a request's prompt."""
        return self


class ContinuedTokens(Sequence[int]):
    """The tokens of ``earlier``, which do not change, then those of ``later``, which may grow."""

    def __init__(self, earlier: Sequence[int], later: Sequence[int]) -> None:
        self._earlier = tuple(earlier)
        self._later = later

    def __len__(self) -> int:
        return len(self._earlier) + len(self._later)

    def __iter__(self) -> Iterator[int]:
        return chain(self._earlier, self._later)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [*self][index]
        index, border = range(len(self))[index], len(self._earlier)
        return self._earlier[index] if index < border else self._later[index - border]
