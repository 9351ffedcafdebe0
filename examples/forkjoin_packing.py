# SPDX-License-Identifier: Apache-2.0
"""Packs training trees into rows of tokens: a fork is trained in one pass, as it decodes.

A tree is laid out flat in its row, the parent first and its children after it. The attention mask and
the positions let each child see its parent up to the fork and nothing of its siblings, so that a
shared prefix is computed once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from forkjoin_task import Piece, Tree
from transformers import PreTrainedTokenizerBase

IGNORED = -100
_NOBODY = -1


@dataclass
class Row:
    """Columns of equal length, with one entry per token; sequences are numbered within the row."""

    tokens: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    forks: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, tokens: list[int], labels: list[int], parent: int, fork: int) -> int:
        """Append a sequence that sees the first `fork` tokens of `parent`, and return its number."""
        self.tokens += tokens
        self.labels += labels
        self.positions += range(fork, fork + len(tokens))
        self.sequences += [self.count] * len(tokens)
        self.parents += [parent] * len(tokens)
        self.forks += [fork] * len(tokens)
        self.count += 1
        return self.count - 1

    def padded(self, length: int, pad_token: int) -> "Row":
        """This row, padded in place to `length` by a sequence without labels."""
        gap = length - len(self.tokens)
        self.add([pad_token] * gap, [IGNORED] * gap, _NOBODY, 0)
        return self


@dataclass(frozen=True)
class Batch:
    """Inputs of a model: (rows, length) each, and a mask (rows, 1, length, length)."""

    tokens: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor


def batches(trees: Iterator[Tree], tokenizer: PreTrainedTokenizerBase, rows: int, length: int) -> Iterator[Batch]:
    """Endless batches of `rows` packed rows; raises `ValueError` for a tree longer than a row's `length`."""
    open_rows = [Row() for _ in range(rows)]
    for tree in trees:
        encoded = [_encode(pieces, tokenizer) for pieces in _sequences(tree)]
        size = sum(len(tokens) for pieces in encoded for tokens in pieces)
        if size > length:
            raise ValueError(f"a tree of {size} tokens does not fit into rows of {length}")
        row = _first_fit(open_rows, length - size)
        if row is None:
            yield _to_batch([row.padded(length, tokenizer.pad_token_id) for row in open_rows])
            open_rows = [Row() for _ in range(rows)]
            row = open_rows[0]
        _add_tree(row, tree, encoded)


def _first_fit(rows: list[Row], limit: int) -> Row | None:
    return next((row for row in rows if len(row.tokens) <= limit), None)


def _sequences(tree: Tree) -> list[tuple[Piece, ...]]:
    return [tree.parent, *(child.pieces for child in tree.children)]


def _encode(pieces: tuple[Piece, ...], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return tokenizer([piece.text for piece in pieces])["input_ids"]


def _add_tree(row: Row, tree: Tree, encoded: list[list[list[int]]]) -> None:
    lengths = list(accumulate(len(tokens) for tokens in encoded[0]))
    parent = row.add(*_flatten(tree.parent, encoded[0]), _NOBODY, 0)
    for child, tokens in zip(tree.children, encoded[1:], strict=True):
        row.add(*_flatten(child.pieces, tokens), parent, lengths[child.fork - 1])


def _flatten(pieces: tuple[Piece, ...], encoded: list[list[int]]) -> tuple[list[int], list[int]]:
    """Tokens of one sequence, and their labels: for each the next token, if the sequence samples it."""
    tokens = [token for piece in encoded for token in piece]
    wanted = [
        token if piece.sampled else IGNORED
        for piece, tokens_of_piece in zip(pieces, encoded, strict=True)
        for token in tokens_of_piece
    ]
    return tokens, [*wanted[1:], IGNORED]


def _to_batch(rows: list[Row]) -> Batch:
    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows])

    positions, sequences = column("positions"), column("sequences")
    own = sequences[:, :, None] == sequences[:, None, :]
    own &= positions[:, None, :] <= positions[:, :, None]
    shared = column("parents")[:, :, None] == sequences[:, None, :]
    shared &= positions[:, None, :] < column("forks")[:, :, None]
    return Batch(column("tokens"), column("labels"), positions, (own | shared)[:, None])
