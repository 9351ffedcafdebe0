# SPDX-License-Identifier: Apache-2.0
"""Rows of trees as tensors. All columns have the shape [num_rows, length], with an entry for each place."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from sequence_hooks.training.rows import Stretch, TreeRows

IGNORED = -100
"""The label of places that predict nothing, as torch's ``cross_entropy`` takes it."""

NO_SEQUENCE = NO_VERSION = -1


@dataclass(frozen=True)
class TreeBatch:
    """What a model is given, and what it is to predict: ``target_ids``, from the logits at the same place."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    stretch_ids: torch.Tensor
    """The stretch of each place, by which masks are computed."""

    sees: torch.Tensor
    """[num_rows, num_stretches, num_stretches], bool: whether the first one sees the second; each sees itself."""

    source_ids: torch.Tensor
    """The place whose KV each place has: its own, or for a copy the one that it is copied from."""

    target_ids: torch.Tensor
    """The sampled token that each place predicts; `IGNORED` where there is none."""

    logprobs: torch.Tensor
    """The engine's log-probability of that token, float32; 0 where there is none, NaN where it is unknown."""

    sequence_ids: torch.Tensor
    """The index in ``sequences`` of the one that sampled that token; `NO_SEQUENCE` where there is none."""

    sequences: tuple[str, ...]
    """The names of the sequences that have sampled tokens."""

    weight_version_ids: torch.Tensor
    """The index in ``weight_versions`` of the one that the token was sampled under; `NO_VERSION` where there is no
    token, or where it is unknown."""

    weight_versions: tuple[str, ...]
    """The versions of the weights that tokens were sampled under, see `sequence_hooks.results.Segment`."""

    @property
    def loss_mask(self) -> torch.Tensor:
        """Whether a place predicts a sampled token, bool. Every sampled token is predicted exactly once."""
        return self.target_ids != IGNORED

    @property
    def labels(self) -> torch.Tensor:
        """``target_ids`` one place further on, for models that shift labels themselves, as those of transformers do.

        Raises:
            ValueError: the last place of a row predicts a token; make the batch at least one place longer.
        """
        if self.loss_mask[:, -1].any():
            raise ValueError("a label would follow the last place; give TreeBatch.of a length of one place more")
        return self.target_ids.roll(1, dims=1)

    def to(self, device: torch.device | str) -> "TreeBatch":
        """The batch on another device."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: value.to(device) for name, value in columns.items() if isinstance(value, torch.Tensor)}
        return TreeBatch(**columns | moved)

    @classmethod
    def of(cls, rows: Sequence[TreeRows], pad_token_id: int, length: int | None = None) -> "TreeBatch":
        """A batch whose row i has ``rows[i]`` and is padded to ``length``, by default to that of the longest.

        Padding sees itself alone, is seen by nothing, and predicts nothing.

        Raises:
            ValueError: a row is longer.
        """
        longest = max(map(len, rows))
        width = longest if length is None else length
        if longest > width:
            raise ValueError(f"a row of {longest} places does not fit into {width}")
        targets = [[*row.targets, *[None] * (width - len(row))] for row in rows]
        predicted = [each for row in targets for each in row if each is not None]
        numbers = _numbered(each.sequence for each in predicted)
        versions = _numbered(each.weight_version for each in predicted if each.weight_version is not None)

        def column(values: list[list[int]]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int64)

        return cls(
            input_ids=column([_padded(row.token_ids, width, pad_token_id) for row in rows]),
            position_ids=column([_padded(row.positions, width, 0) for row in rows]),
            stretch_ids=column([_stretch_ids(row.stretches, width) for row in rows]),
            sees=_sees([row.stretches for row in rows]),
            source_ids=column([[*row.sources, *range(len(row), width)] for row in rows]),
            target_ids=column([[IGNORED if each is None else each.token_id for each in row] for row in targets]),
            logprobs=torch.tensor([[0.0 if each is None else _known(each.logprob) for each in row] for row in targets]),
            sequence_ids=column(
                [[NO_SEQUENCE if each is None else numbers[each.sequence] for each in row] for row in targets]
            ),
            sequences=tuple(numbers),
            weight_version_ids=column(
                [
                    [NO_VERSION if each is None else versions.get(each.weight_version, NO_VERSION) for each in row]
                    for row in targets
                ]
            ),
            weight_versions=tuple(versions),
        )


def gather_logprobs(logits: torch.Tensor, batch: TreeBatch) -> torch.Tensor:
    """The model's log-probability of the token that each place predicts, at least float32; 0 where there is none.

    Args:
        logits: [num_rows, length, vocabulary], of any floating-point type.
    """
    mask = batch.loss_mask
    precise = torch.promote_types(logits.dtype, torch.float32)
    # Places that predict nothing are left out first: a softmax over all of them would take the most memory by far.
    logprobs = logits[mask].log_softmax(-1, dtype=precise)
    own = logprobs.gather(-1, batch.target_ids[mask, None])[:, 0]
    return own.new_zeros(mask.shape).masked_scatter(mask, own)


def _numbered(names: Iterable[Hashable]) -> dict[Any, int]:
    """A number for each name, in order."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def _padded(values: Sequence[int], length: int, padding: int) -> list[int]:
    return [*values, *[padding] * (length - len(values))]


def _known(logprob: float | None) -> float:
    return float("nan") if logprob is None else logprob


def _stretch_ids(stretches: Sequence[Stretch], length: int) -> list[int]:
    """The padding is a stretch after the last one."""
    ids = [number for number, each in enumerate(stretches) for _ in range(each.start, each.end)]
    return _padded(ids, length, len(stretches))


def _sees(rows: Sequence[Sequence[Stretch]]) -> torch.Tensor:
    num_stretches = max(map(len, rows)) + 1
    sees = torch.eye(num_stretches, dtype=torch.bool).repeat(len(rows), 1, 1)
    for row, stretches in enumerate(rows):
        for number, each in enumerate(stretches):
            sees[row, number, list(each.sees)] = True
    return sees
