# SPDX-License-Identifier: Apache-2.0
"""A training step on packed trees has the same loss and gradient as on their sequences, decoded token by token."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
import torch

from mytests.harness.tiers import ON_V1_IN_FULL, pairs
from mytests.harness.training_models import FAMILIES, WAYS, Decoding, logits_of, tiny_model
from mytests.harness.training_trees import Simulated, random_tree
from sequence_hooks.training import Merge, Moving, TokenTree, TreeBatch, gather_logprobs, lay_out, pack

pytestmark = [pytest.mark.model, pytest.mark.floats, *ON_V1_IN_FULL]

LENGTH = 500
TOLERANCE = 1e-5
"""Relative to the loss, and to the largest gradient: norms and rotations are computed in float32."""


def random_trees() -> Iterator[TokenTree]:
    """Nested ones, which are not longer than what is quickly decoded token by token."""
    draw = Random(1)
    while True:
        tree = random_tree(draw)
        try:
            lay_out([tree], "sequential", max_rows=LENGTH)
        except ValueError:
            continue
        if len(lay_out([tree], "concatenate")) > 30:
            yield tree


TREES = [tree for tree, _ in zip(random_trees(), range(4), strict=False)]


def gradients(model: Any, logprobs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Those of the sum of ``logprobs``."""
    model.zero_grad()
    logprobs.sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


Sampled = tuple[int, str, int]
"""A sampled token: the number of its tree, its sequence, and its position there."""


def decoded_one_by_one(model: Any, trees: Sequence[TokenTree], merge: Merge) -> dict[Sampled, torch.Tensor]:
    """The logprob of each sampled token."""
    found = {}
    for number, tree in enumerate(trees):
        token_ids = {each.name: each.output_token_ids for each in tree.walk()}
        for (name, position), computed in Simulated(tree, merge, Decoding(model)).found.items():
            found[number, name, position] = computed.logits.log_softmax(-1)[token_ids[name][position]]
    return found


@pytest.mark.parametrize(("merge", "moving", "family"), pairs(WAYS, FAMILIES))
def test_packed_trees_are_as_sequences_one_by_one(merge: Merge, moving: Moving, family: str) -> None:
    """In the sum of all logprobs, and in its gradient by every parameter."""
    model, rows = tiny_model(family), pack([lay_out([tree], merge, moving=moving) for tree in TREES], LENGTH)
    batch = TreeBatch.of(rows, pad_token_id=0)
    packed = gather_logprobs(logits_of(model, batch), batch)
    one_by_one = torch.stack([*decoded_one_by_one(model, TREES, merge).values()])
    assert len(rows) < len(TREES)
    assert packed.count_nonzero() == len(one_by_one) > 150
    torch.testing.assert_close(packed.sum(), one_by_one.sum(), rtol=TOLERANCE, atol=0)
    ours, theirs = gradients(model, packed), gradients(model, one_by_one)
    largest = max(each.abs().max().item() for each in theirs.values())
    assert largest > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE * largest)
