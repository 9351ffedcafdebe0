# SPDX-License-Identifier: Apache-2.0
"""Trees as plain causal rows, for trainers that take token ids, a mask and log-probabilities, and nothing else.

Such a row is the whole context of a sequence. What it shares with its parent is repeated in the rows of both, so a tree
has many more tokens than `sequence_hooks.training.lay_out` needs for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sequence_hooks.results import Join
from sequence_hooks.training.layout import Merge
from sequence_hooks.training.token_tree import TokenTree


@dataclass(frozen=True)
class PlainRow:
    """A causal row: each token sees all before it. The three lists have an entry for each token."""

    sequence: str
    """The name of the sequence whose context it is."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """Whether the sequence has sampled the token, and is trained by it."""

    logprobs: tuple[float, ...]
    """The engine's log-probability where ``loss_mask`` is true, NaN if it is unknown; 0 elsewhere."""


def plain_rows(tree: TokenTree, merge: Merge = "concatenate") -> list[PlainRow]:
    """The context of each sequence of ``tree`` as a causal row, in the order of `TokenTree.walk`.

    Each sampled token counts in one row. A sequence whose joins have replaced the end of its context has a row for each
    context that it had: with what was replaced, and without it.

    Args:
        merge: How the engine's joins merge.

    Raises:
        ValueError: ``merge`` is not "concatenate", or a join has injected KV of a child: no causal row computes that.
    """
    if merge != "concatenate":
        raise ValueError(
            f"merge is {merge!r}, which no causal row computes; use lay_out, or an engine that concatenates"
        )
    return list(_rows(tree, ()))


@dataclass
class _Context:
    token_ids: list[int]
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._forget_targets()

    def append(self, token_id: int, logprob: float | None, is_target: bool) -> None:
        self.token_ids.append(token_id)
        self.loss_mask.append(is_target)
        self.logprobs.append(0.0 if not is_target else float("nan") if logprob is None else logprob)

    def cut(self, num_kept: int) -> None:
        """Keep the front alone, whose tokens are targets of an earlier row."""
        del self.token_ids[num_kept:]
        self._forget_targets()

    def row(self, sequence: str) -> PlainRow:
        return PlainRow(sequence, tuple(self.token_ids), tuple(self.loss_mask), tuple(self.logprobs))

    def _forget_targets(self) -> None:
        self.loss_mask, self.logprobs = [False] * len(self.token_ids), [0.0] * len(self.token_ids)


def _rows(tree: TokenTree, shared: Sequence[int]) -> Iterator[PlainRow]:
    """The rows of a sequence whose context begins with ``shared``, and of those below it."""
    context = _Context([*shared, *tree.prompt_token_ids])
    sampled = {
        position for each in tree.segments if each.origin == "sampled" for position in range(each.start, each.end)
    }
    joins = {join.position: join for join in tree.joins}
    of_children: dict[str, Sequence[int]] = {}
    for position in range(len(tree.output_token_ids) + 1):
        # A child that starts where its parent joins has seen its parent's context as it was before.
        for child in tree.children:
            if child.spawn_position <= position and child.num_shared <= len(context.token_ids):
                of_children.setdefault(child.name, context.token_ids[: child.num_shared])
        if position in joins and _replaces(tree, joins[position]):
            yield context.row(tree.name)
            context.cut(joins[position].num_context - joins[position].num_merged)
        if position < len(tree.output_token_ids):
            logprob = None if tree.logprobs is None else tree.logprobs[position]
            context.append(tree.output_token_ids[position], logprob, tree.is_trained and position in sampled)
    yield context.row(tree.name)
    for child in tree.children:
        if child.name not in of_children:
            raise ValueError(f"{child.name} shares {child.num_shared} tokens, and {tree.name} never had as many")
        yield from _rows(child, of_children[child.name])


def _replaces(tree: TokenTree, join: Join) -> bool:
    """Whether a join has cut the context; raises a `ValueError` if it has injected KV."""
    if join.injected:
        raise ValueError(
            f"{tree.name} got KV of its children at its join at {join.position}, which no causal row computes; use "
            "lay_out, or an engine that concatenates"
        )
    return join.num_replaced > 0
