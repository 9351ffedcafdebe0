# SPDX-License-Identifier: Apache-2.0
"""Trees for the tests of `sequence_hooks.training`, and what an engine would compute for them.

A token is a character. Instead of a model there is a hash: a token's *value* depends on the token, and on the values of
all that it sees with their distances, as that of a rotary transformer does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from mytests.fuzz.injection_oracle import Layout, Token
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
    return list(map(ord, text))


def of_text(tree: TextTree) -> TokenTree:
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


class Simulated(Generic[V]):
    """What a sequence and those below it compute: the rows that the oracle of injection lays out, with their values.

    ``found`` has the value of the token before each sampled one.
    """

    def __init__(self, tree: TokenTree, merge: Merge, compute: Compute[V]) -> None:
        self._compute = compute
        self._values: dict[Token, V] = {}
        layout = Layout(_node(tree, merge != "concatenate"), "overlap" if merge == "overlap" else "sequential", {})
        self.found: dict[Sampled, V] = {
            (each.node.name, position): self._value(token)
            for each in layout.walk()
            for position, token in each.sampled_from.items()
        }

    def _value(self, token: Token) -> V:
        """It moves with its token, which its own sequence has computed once."""
        token = token.original
        if token not in self._values:
            seen = [Entry(each.position, self._value(each)) for each in token.context]
            self._values[token] = self._compute(token.token_id, token.position, seen)
        return self._values[token]


def _node(tree: TokenTree, has_kv: bool) -> Any:
    """A tree as an engine tells of it, which gives up no KV.

    Args:
        has_kv: Whether its parent may have the KV of its result.
    """
    end = len(tree.output_token_ids)
    joins = [
        SimpleNamespace(
            position=each.position,
            num_merged=each.num_merged,
            num_replaced=0,
            num_prefill=each.position + each.num_merged < end,
        )
        for each in tree.joins
    ]
    output = SimpleNamespace(
        joins=joins, num_shared=tree.num_shared, prefix_token_ids=tree.prompt_token_ids, failed=not has_kv
    )
    children = [_node(each, has_kv) for each in tree.children]
    for child in children:
        # One that shares nothing may have begun with any token.
        child.output.spawn_position = max(1, child.output.num_shared - tree.num_prompt)
    return SimpleNamespace(
        name=tree.name,
        # What is shared is its parent's.
        prompt=(*[0] * tree.num_shared, *tree.prompt_token_ids),
        tokens=tree.output_token_ids,
        segments=tree.segments,
        result=tree.result,
        output=output,
        children=children,
    )
