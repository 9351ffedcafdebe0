# SPDX-License-Identifier: Apache-2.0
"""Trees written as text, each piece of which is tokenized on its own: a dataset in a notation's own text.

A child is started where its `Fork` stands, and merged where its `ResultOf` stands::

    child = TextTree("first", "<child>", (SampledText("enost"), SampledText("<eos>", in_result=False)))
    TextTree(
        "stone",
        "sort stone\\n",
        (SampledText("1<promise>"), Fork(child), SampledText("<sync>"), ResultOf("first"), SampledText("\\n= e<eos>")),
    )

Tokens that are not sampled between two that are come from one join.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from sequence_hooks.results import Join, Origin, Segment
from sequence_hooks.text.continuing import Continuer, continuing_ids, parted_ids
from sequence_hooks.training.token_tree import TokenTree

Encode = Callable[[str], Sequence[int]]
"""Returns the token ids of a text, without special tokens that the text does not have."""


@dataclass(frozen=True)
class SampledText:
    """Text that the sequence samples itself."""

    text: str
    in_result: bool = True
    """False for what ends a child, such as an EOS token: its parent does not get it."""


@dataclass(frozen=True)
class InsertedText:
    """Text that no sequence samples, and that a join adds, such as a separator."""

    text: str


@dataclass(frozen=True)
class Fork:
    """A child starts here."""

    child: "TextTree"


@dataclass(frozen=True)
class ResultOf:
    """What the sequence gets of a child: its whole output, but for what ends it."""

    child: str
    """The child's name."""


@dataclass(frozen=True)
class PrefixOf:
    """What the sequence gets of a child's own prompt, as `sequence_hooks.handlers.PrefixOf` says to a join: all of it,
    before its `ResultOf`. It is the child's text, with the child's KV, and not an `InsertedText`."""

    child: str
    """The child's name."""


@dataclass(frozen=True)
class TextTree:
    """One sequence with its children."""

    name: str
    """Unlike that of any other sequence of its tree."""

    prompt: str
    """A root's prompt; for a child, the text that follows its parent's context."""

    output: tuple[SampledText | InsertedText | Fork | PrefixOf | ResultOf, ...]
    sees_parent: bool = True
    """Whether a child's context begins with its parent's."""

    is_trained: bool = True
    """False for a child whose result is wrong on purpose: its parent learns to go on from that result, and the model
    does not learn to sample it. Its own children are trained unless they say so themselves."""


def continuing(tokenizer: Continuer) -> Encode:
    """What encodes texts as engines do where a sequence goes on: without the space that a tokenizer of SentencePiece's
    kind puts before a text."""
    return partial(continuing_ids, tokenizer=tokenizer)


def encoded(tree: TextTree, encode: Encode, continued: Encode | None = None) -> TokenTree:
    """A tree of token ids, whose engine has given up no KV. Inserted texts in a row are encoded together, and
    the last of them is what their join inserts last.

    Args:
        encode: Encodes what a context begins with.
        continued: Encodes all other texts, see `continuing`; if None, ``encode`` does.

    Raises:
        ValueError: two sequences have the same name; or a result or prefix is that of no child, or of one that starts
            later.
    """
    names = list(_names(tree))
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two sequences are named {twice[0]!r}")
    return _encoded(tree, encode, continued or encode, 0)


def _names(tree: TextTree) -> Iterator[str]:
    yield tree.name
    for piece in tree.output:
        if isinstance(piece, Fork):
            yield from _names(piece.child)


def _encoded(tree: TextTree, begin: Encode, encode: Encode, num_parent: int) -> TokenTree:
    num_shared = num_parent if tree.sees_parent else 0
    prompt, writer = tuple((encode if num_shared else begin)(tree.prompt)), _Writer(tree.name)
    for piece in _joined(tree.output, encode):
        if isinstance(piece, Fork):
            num_context = num_shared + len(prompt) + len(writer.token_ids)
            writer.children[piece.child.name] = _encoded(piece.child, begin, encode, num_context)
        elif isinstance(piece, ResultOf):
            child = writer.child(piece.child, "result")
            writer.write([child.output_token_ids[position] for position in child.result], "merged", child.name)
        elif isinstance(piece, PrefixOf):
            writer.write(writer.child(piece.child, "prefix").prompt_token_ids, "inserted", piece.child)
        elif isinstance(piece, _InsertedIds):
            writer.write(piece.token_ids, "inserted")
        else:
            writer.write(encode(piece.text), "sampled", in_result=piece.in_result)
    return replace(writer.tree(num_shared, prompt), sees_parent=tree.sees_parent, is_trained=tree.is_trained)


class _InsertedIds(NamedTuple):
    token_ids: Sequence[int]


def _joined(output: Iterable[Any], encode: Encode) -> Iterator[Any]:
    """The pieces of an output; inserted texts in a row are encoded together, as a join does it."""
    for kind, run in groupby(output, key=type):
        if kind is InsertedText:
            yield from map(_InsertedIds, parted_ids([piece.text for piece in run], encode))
        else:
            yield from run


class _Writer:
    """Collects the output of one sequence."""

    def __init__(self, name: str) -> None:
        self.token_ids: list[int] = []
        self.children: dict[str, TokenTree] = {}
        self._name = name
        self._segments: list[Segment] = []
        self._result: list[int] = []

    def write(
        self, token_ids: Sequence[int], origin: Origin, child: str | None = None, *, in_result: bool = True
    ) -> None:
        start = len(self.token_ids)
        self.token_ids += token_ids
        end = len(self.token_ids)
        if end > start:
            self._segments.append(Segment(start, end, origin, child))
        if in_result:
            self._result += range(start, end)

    def child(self, name: str, what: str) -> TokenTree:
        if name not in self.children:
            raise ValueError(f"{self._name} has no child {name!r} before its {what}; it has {list(self.children)}")
        return self.children[name]

    def tree(self, num_shared: int, prompt: tuple[int, ...]) -> TokenTree:
        without_joins = TokenTree(
            name=self._name,
            num_shared=num_shared,
            prompt_token_ids=prompt,
            output_token_ids=tuple(self.token_ids),
            segments=tuple(self._segments),
            joins=(),
            result=tuple(self._result),
            children=tuple(self.children.values()),
            is_written=True,
        )
        return replace(without_joins, joins=tuple(_joins(without_joins)))


def _joins(tree: TokenTree) -> Iterator[Join]:
    """One for each run of tokens that were not sampled."""
    for is_sampled, group in groupby(tree.segments, key=lambda segment: segment.origin == "sampled"):
        if not is_sampled:
            segments = list(group)
            start, end = segments[0].start, segments[-1].end
            join = Join(start, end - start, 0, tree.num_prompt + end)
            ends = end == len(tree.output_token_ids)
            num_prefill = 0 if ends else join.num_merged + 1 - tree.num_injectable(join)
            yield replace(join, num_prefill=num_prefill)
