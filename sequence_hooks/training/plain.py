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
    """A causal row: each token sees all before it. The four lists have an entry for each token."""

    sequence: str
    """The name of the sequence whose context it is."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """Whether the sequence has sampled the token, and is trained by it."""

    logprobs: tuple[float, ...]
    """The engine's log-probability where ``loss_mask`` is true, NaN if it is unknown; 0 elsewhere."""

    weight_versions: tuple[str | None, ...]
    """The version of the weights that the sequence sampled the token under, where ``loss_mask`` is true and it is
    known; None elsewhere."""


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
    weight_versions: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._forget_targets()

    def append(self, token_id: int) -> None:
        """A token that is no target."""
        self.token_ids.append(token_id)
        self.loss_mask.append(False)
        self.logprobs.append(0.0)
        self.weight_versions.append(None)

    def append_target(self, token_id: int, logprob: float | None, weight_version: str | None) -> None:
        self.token_ids.append(token_id)
        self.loss_mask.append(True)
        self.logprobs.append(float("nan") if logprob is None else logprob)
        self.weight_versions.append(weight_version)

    def cut(self, num_kept: int) -> None:
        """Keep the front alone, whose tokens are targets of an earlier row."""
        del self.token_ids[num_kept:]
        self._forget_targets()

    def row(self, sequence: str) -> PlainRow:
        columns = tuple(self.loss_mask), tuple(self.logprobs), tuple(self.weight_versions)
        return PlainRow(sequence, tuple(self.token_ids), *columns)

    def _forget_targets(self) -> None:
        length = len(self.token_ids)
        self.loss_mask, self.logprobs, self.weight_versions = [False] * length, [0.0] * length, [None] * length


def _rows(tree: TokenTree, shared: Sequence[int]) -> Iterator[PlainRow]:
    """The rows of a sequence whose context begins with ``shared``, and of those below it."""
    context = _Context([*shared, *tree.prompt_token_ids])
    targets = (each for each in tree.segments if each.origin == "sampled" and tree.is_trained)
    versions = {position: each.weight_version for each in targets for position in range(each.start, each.end)}
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
        if position in versions:
            logprob = None if tree.logprobs is None else tree.logprobs[position]
            context.append_target(tree.output_token_ids[position], logprob, versions[position])
        elif position < len(tree.output_token_ids):
            context.append(tree.output_token_ids[position])
    yield context.row(tree.name)
    for child in tree.children:
        if child.name not in of_children:
            raise ValueError(f"{child.name} shares {child.num_shared} tokens, and {tree.name} never had as many")
        yield from _rows(child, of_children[child.name])


def _replaces(tree: TokenTree, join: Join) -> bool:
    """Whether a join has cut the context; raises a `ValueError` if it has injected KV."""
    is_injected = not tree.is_written and not join.num_replaced and 0 < join.num_prefill <= join.num_merged
    # Answers of older servers do not name what was injected.
    if join.injected or is_injected:
        raise ValueError(
            f"{tree.name} got KV of its children at its join at {join.position}, which no causal row computes; use "
            "lay_out, or an engine that concatenates"
        )
    return join.num_replaced > 0
