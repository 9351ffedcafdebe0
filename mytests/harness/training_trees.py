# SPDX-License-Identifier: Apache-2.0
"""Trees for the tests of `sequence_hooks.training`, and what an engine would compute for them.

A token is a character. Instead of a model there is a hash: a token's *value* depends on the token, and on the values of
all that it sees with their distances, as that of a rotary transformer does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from string import ascii_lowercase
from typing import Generic, TypeVar

from sequence_hooks.results import Segment
from sequence_hooks.training import (
    Fork,
    InsertedText,
    Merge,
    PrefixOf,
    ResultOf,
    SampledText,
    TextTree,
    TokenTree,
    encoded,
)
from sequence_hooks.training.rows import TreeRows

Sampled = tuple[str, int]
"""A sampled token, by the name of its sequence and its position in the output."""

Piece = SampledText | InsertedText | Fork | PrefixOf | ResultOf

END = SampledText("$", in_result=False)


def characters(text: str) -> list[int]:
    """A token for each character."""
    return list(map(ord, text))


def of_text(tree: TextTree) -> TokenTree:
    """A tree of characters."""
    return encoded(tree, characters)


def child(name: str, text: str, prefix: str = "c") -> TextTree:
    """A child that ends by itself, and whose result is ``text``."""
    return TextTree(name, prefix, (SampledText(text), END))


def fork_and_join(*children: TextTree, mode: str = "sync") -> TokenTree:
    """A parent with the prompt "pp" that starts each of its children with P, and joins all at S, or each at its P."""
    output: list[Piece] = []
    for each in children:
        output += [SampledText("P"), Fork(each)]
        output += [ResultOf(each.name)] if mode == "promise" else []
    if mode == "sync":
        output.append(SampledText("S"))
        results: list[list[Piece]] = [[InsertedText("|"), ResultOf(each.name)] for each in children]
        output += [*chain.from_iterable(results)][1:]
    return of_text(TextTree("root", "pp", (*output, SampledText("~"), END)))


def random_tree(draw: Random, name: str = "root", depth: int = 0) -> TokenTree:
    """A tree up to three levels deep, with all that can happen to one whose engine gives up no KV."""
    return of_text(_random_text(draw, name, depth))


def _random_text(draw: Random, name: str, depth: int) -> TextTree:
    output: list[Piece] = [SampledText(_letters(draw, 1, 3))]
    unjoined: list[str] = []
    num_children = 0
    for _ in range(draw.randint(0, 4)):
        if depth < 2 and draw.random() < 0.6:
            for _ in range(draw.randint(1, 3)):
                output.append(Fork(_random_text(draw, f"{name}.{num_children}", depth + 1)))
                unjoined.append(f"{name}.{num_children}")
                num_children += 1
        if draw.random() < 0.5:
            output += _join(draw, unjoined)
        output.append(SampledText(_letters(draw, 1, 3)))
    if draw.random() < 0.7:
        output.append(END)
    output += _join(draw, unjoined) if draw.random() < 0.3 else []
    sees_parent = draw.random() < 0.9
    return TextTree(name, _letters(draw, int(depth == 0 or not sees_parent), 3), tuple(output), sees_parent)


def _join(draw: Random, unjoined: list[str]) -> list[Piece]:
    """Some children stay detached."""
    merged: list[Piece] = []
    for name in unjoined:
        if draw.random() < 0.8:
            merged += [*[PrefixOf(name)] * draw.randint(0, 1), ResultOf(name)]
            merged += [InsertedText(text) for text in draw.choice([(), ("|",), ("|", ",.")])]
    unjoined.clear()
    return merged


def _letters(draw: Random, least: int, most: int) -> str:
    return "".join(draw.choices(ascii_lowercase, k=draw.randint(least, most)))


V = TypeVar("V")


@dataclass(frozen=True)
class Entry(Generic[V]):
    """What a KV cache has of one token."""

    position: int
    value: V


Compute = Callable[[int, int, Sequence[Entry[V]]], V]
"""Returns the value of a token, given its id, its position, and the entries that it sees."""


def hashed(token_id: int, position: int, seen: Sequence[Entry[int]]) -> int:
    """The value of a token, instead of a model's."""
    return hash((token_id, *sorted((position - each.position, each.value) for each in seen)))


def values_in(rows: TreeRows) -> dict[Sampled, int]:
    """The value of the row that predicts each sampled token; each may be predicted once."""
    entries: list[Entry[int]] = []
    found: dict[Sampled, int] = {}
    for row, (token_id, position, target) in enumerate(zip(rows.token_ids, rows.positions, rows.targets, strict=True)):
        *seen, itself = rows.seen_by(row)
        assert itself == row
        source = rows.sources[row]
        if source != row:
            assert rows.token_ids[source] == token_id and target is None
            entries.append(Entry(position, entries[source].value))
            continue
        entries.append(Entry(position, hashed(token_id, position, [entries[each] for each in seen])))
        if target is not None:
            assert (target.sequence, target.position) not in found
            found[target.sequence, target.position] = entries[row].value
    return found


@dataclass
class Simulated(Generic[V]):
    """The KV cache of one sequence, which an engine fills token by token, and to which it copies that of children."""

    tree: TokenTree
    merge: Merge
    compute: Compute[V]
    parent: "Simulated[V] | None" = None
    entries: list[Entry[V]] = field(default_factory=list)
    next_position: int = 0
    children: dict[str, "Simulated[V]"] = field(default_factory=dict)
    found: dict[Sampled, V] = field(default_factory=dict)
    """The value of the token before each sampled one, in this sequence and those below."""

    def run(self) -> "Simulated[V]":
        """Decode the sequence and its children."""
        tree = self.tree
        if self.parent is not None and tree.num_shared:
            self.entries = self.parent.entries[: tree.num_shared]
            self.next_position = self.parent.next_position
        for token_id in tree.prompt_token_ids:
            self._compute(token_id)
        joins = {join.position: join for join in tree.joins}
        position = 0
        while position < len(tree.output_token_ids):
            self._start_children(position)
            if position in joins:
                self._join(position, position + joins[position].num_merged)
                position += joins[position].num_merged
            else:
                self.found[tree.name, position] = self.entries[-1].value
                self._compute(tree.output_token_ids[position])
                position += 1
        self._start_children(position)
        return self

    def _start_children(self, position: int) -> None:
        for each in self.tree.children:
            if each.num_shared <= self.tree.num_prompt + position and each.name not in self.children:
                self.children[each.name] = Simulated(each, self.merge, self.compute, self).run()
                self.found |= self.children[each.name].found

    def _join(self, start: int, end: int) -> None:
        pieces = [self._piece(position) for position in range(start, end)]
        copied = [can_be_copied for _, can_be_copied in pieces[:-1]] + [False]
        ends = end == len(self.tree.output_token_ids)
        injects = self.merge != "concatenate" and any(copied) and not ends
        overlaps = self.merge == "overlap" and not ends
        furthest = self.next_position
        for position, (entry, _), is_copied in zip(range(start, end), pieces, copied, strict=True):
            if overlaps and entry is not None:
                self.next_position = entry.position
            elif overlaps and self._is_in_last_text(position, end):
                self.next_position = furthest
            if injects and entry is not None and is_copied:
                self.entries.append(Entry(self.next_position, entry.value))
                self.next_position += 1
            else:
                self._compute(self.tree.output_token_ids[position])
            furthest = max(furthest, self.next_position)
        self.next_position = furthest

    def _piece(self, position: int) -> tuple[Entry[V] | None, bool]:
        """What a child that has seen its parent has of a merged token, all of it computed here.

        Returns:
            Also whether the child computes it before it ends.
        """
        segment = self._segment(position)
        source = None if segment.child is None else self.children[segment.child]
        if source is None or not source.tree.sees_parent:
            return None, False
        if segment.origin == "inserted":
            place = position - segment.start - len(source.tree.prompt_token_ids)
        else:
            place = source.tree.result[position - segment.start]
        sampled = [each.end for each in source.tree.segments if each.origin == "sampled"]
        return source.entries[source.tree.num_prompt + place], place < max(sampled) - 1

    def _segment(self, position: int) -> Segment:
        return next(each for each in self.tree.segments if each.start <= position < each.end)

    def _is_in_last_text(self, position: int, end: int) -> bool:
        segment = self._segment(position)
        return segment.child is None and segment.end == end

    def _compute(self, token_id: int) -> None:
        value = self.compute(token_id, self.next_position, self.entries)
        self.entries.append(Entry(self.next_position, value))
        self.next_position += 1
