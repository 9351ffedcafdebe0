# SPDX-License-Identifier: Apache-2.0
"""Trees for the tests of `sequence_hooks.training`, and what an engine would compute for them.

A token is a character. Instead of a model there is a hash: a token's *value* depends on the token, and on the values of
all that it sees with their distances, as that of a rotary transformer does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from mytests.fuzz.injection_oracle import Layout, Token
from sequence_hooks.results import Join, Segment
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
from sequence_hooks.tree.replacement import with_replaced

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


SYNC = fork_and_join(child("a", "aa"), child("b", "bbb"))


def cut_tree(first_kept: int, inserted: str = "X") -> TokenTree:
    """`SYNC`, which then samples ``u`` and replaces all of its output from a place on, and goes on with ``vw``.

    A child that starts after ``~`` has seen what is replaced then, and one after ``v`` has not.
    """
    own, end = SYNC.output_token_ids[:-1], len(SYNC.output_token_ids)
    output = (*own, ord("u"), *map(ord, inserted), *map(ord, "vw"))
    kept = [each for each in SYNC.segments if each.end <= end - 1]
    segments = [*with_replaced([*kept, Segment(end - 1, end, "sampled")], end - first_kept)]
    num_context = SYNC.num_prompt + first_kept + len(inserted)
    # The engine has computed all but the last token before the cut; of injected KV, it keeps all or nothing.
    num_kept = num_context - len(inserted) if first_kept <= 3 or first_kept >= 9 else 5
    prefill = num_context - min(num_kept, num_context - 1)
    segments += [Segment(end, end + len(inserted), "inserted")] * bool(inserted)
    segments.append(Segment(end + len(inserted), len(output), "sampled"))
    cut = Join(end, len(inserted), 0, num_context, prefill, None, end - first_kept)

    def seeing(name: str, position: int, num_shared: int) -> TokenTree:
        made = replace(SYNC.children[0], name=name, num_shared=num_shared, spawn_position=position)
        return replace(made, children=(), joins=())

    late = seeing("late", end + len(inserted) + 1, num_context + 1)
    early = seeing("early", end - 1, SYNC.num_prompt + end - 1)
    joins, children = (*SYNC.joins, cut), (*SYNC.children, early, late)
    return replace(SYNC, output_token_ids=output, segments=tuple(segments), joins=joins, children=children)


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
    """A tree as an engine tells of it, which gives up no KV; its parent may have its result's if it ``has_kv``."""
    end = len(tree.output_token_ids)
    joins = [SimpleNamespace(position=each.position, num_merged=each.num_merged, num_replaced=0) for each in tree.joins]
    for join in joins:
        join.num_prefill = join.position + join.num_merged < end
    output = SimpleNamespace(joins=joins, prefix_token_ids=tree.prompt_token_ids, failed=not has_kv)
    output.num_shared = tree.num_shared
    children = [_node(each, has_kv) for each in tree.children]
    for child in children:
        # One that shares nothing may have begun with any token.
        child.output.spawn_position = max(1, child.output.num_shared - tree.num_prompt)
    # What is shared is its parent's.
    tokens = {"prompt": (*[0] * tree.num_shared, *tree.prompt_token_ids), "tokens": tree.output_token_ids}
    sampled = {"segments": tree.segments, "result": tree.result, **tokens}
    return SimpleNamespace(name=tree.name, output=output, children=children, **sampled)
