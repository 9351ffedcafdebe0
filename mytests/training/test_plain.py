# SPDX-License-Identifier: Apache-2.0
"""Plain transformers compute the engine's log-probabilities from plain causal rows, without a mask."""

from typing import Any

import pytest
import torch

from mytests.fuzz.model import model_folder
from mytests.harness.training_engines import FORCED, outputs_of, plain_model, random_history
from sequence_hooks.training import Merge, PlainRow, TokenTree, plain_rows, token_trees

pytestmark = [pytest.mark.model, pytest.mark.floats]

TOLERANCE = 1e-3
"""For float32, as in `mytests.training.test_on_engines`."""

CASES: dict[str, dict[str, Any]] = {"cut": {"replaces": True}, "detached": {"block_on": "never"}}
"""`mytests.training.test_written_rows` has the others: there rows are those of layouts."""


def trees_of(merge: Merge, seed: int, **changes: Any) -> list[TokenTree]:
    outputs = outputs_of(random_history(merge, seed, **changes))
    return [tree for output in outputs for tree in token_trees(output)]


def logprobs_of(row: PlainRow) -> torch.Tensor:
    """What transformers compute for each token after the first; plans force some tokens, which no row samples else."""
    with torch.inference_mode():
        logits = plain_model(model_folder())(torch.tensor([row.token_ids])).logits[0, :-1]
        logits[:, FORCED] = -torch.inf
    return logits.log_softmax(-1).gather(-1, torch.tensor(row.token_ids)[1:, None])[:, 0]


@pytest.mark.parametrize("case", CASES)
def test_each_row_computes_what_the_engine_did(case: str) -> None:
    """And each sampled token is a target once."""
    total = 0
    for tree in trees_of("concatenate", 0, **CASES[case]):
        rows = plain_rows(tree)
        sampled = [part.end - part.start for each in tree.walk() for part in each.segments if part.origin == "sampled"]
        assert sum(sum(row.loss_mask) for row in rows) == sum(sampled)
        assert list(dict.fromkeys(row.sequence for row in rows)) == [each.name for each in tree.walk()]
        for row in rows:
            free = torch.tensor(row.loss_mask[1:]) & ~torch.isin(torch.tensor(row.token_ids[1:]), torch.tensor(FORCED))
            expected = torch.tensor(row.logprobs[1:])[free]
            torch.testing.assert_close(logprobs_of(row)[free], expected, rtol=0, atol=TOLERANCE)
            total += int(free.sum())
    assert total > 50


def test_an_engines_injection_is_refused() -> None:
    """By what its joins say."""
    trees = trees_of("overlap", 0)
    injected = [each for each in trees if any(join.injected for join in each.joins)]
    assert injected
    for tree in injected:
        with pytest.raises(ValueError, match=r"got KV of its children at its join at .*; use lay_out"):
            plain_rows(tree)
