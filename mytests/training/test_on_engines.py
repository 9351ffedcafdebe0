# SPDX-License-Identifier: Apache-2.0
"""Plain transformers compute the log-probabilities that the engine has returned, under masks or from plain rows."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

# The engine runs in this process; this is read when vllm is imported.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from forkjoin_engine import IS_FORK, MODEL_FOLDER, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts

from mytests.fuzz.fuzzing import Run
from mytests.fuzz.model import model_folder
from mytests.harness.installed import IS_V1
from mytests.harness.tiers import full, on_the_fork, pairs
from mytests.harness.training_engines import (
    FORCED,
    ResettingRun,
    is_free,
    logprobs_of,
    outputs_of,
    plain_model,
    random_history,
)
from mytests.harness.training_models import FAMILIES, WAYS
from sequence_hooks.config.choices import BlockOn, ChildContext
from sequence_hooks.training import Merge, Moving, PlainRow, TreeBatch, TreeRows, lay_out, pack, plain_rows, token_trees
from vllm import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.floats]

TOLERANCE = 1e-3
"""For float32, where 5e-5 was seen; a mask that is wrong moves some logprob by ten times as much at least."""

MAX_ROWS = 3000
HISTORIES = 4

FIELDS: dict[Merge, dict[str, Any]] = {
    "concatenate": {},
    "sequential": {"child_merge_strategy": "kv_inject"},
    "overlap": {"child_merge_strategy": "kv_inject", "position_rule": "overlap"},
}


def laid_out(outputs: list[Any], merge: Merge, moving: Moving) -> list[TreeRows]:
    """The rows of each request, but for those that would need too many of them."""
    rows = []
    for output in outputs:
        trees = token_trees(output)
        try:
            rows.append(lay_out(trees, merge, MAX_ROWS, moving))
        except ValueError as error:
            assert "more than" in str(error) and moving == "computed"
    return rows


@pytest.mark.parametrize(("merge", "moving", "mode"), on_the_fork(pairs(WAYS, MODES)))
def test_a_trained_models_own_trees(merge: Merge, moving: Moving, mode: Mode) -> None:
    """Every token that it has sampled itself, hook tokens included, in two samples of each prompt."""
    engine = open_engine(hooks_for(mode, **FIELDS[merge]), seed=1)
    params = SamplingParams(temperature=1.0, n=2, logprobs=0, max_tokens=40, skip_special_tokens=False)
    outputs = engine.generate(held_out_prompts(20, 1, mode), params, use_tqdm=False)
    if not IS_FORK:
        engine.llm_engine.engine_core.shutdown()
    rows = laid_out(outputs, merge, moving)
    batch = TreeBatch.of(pack(rows, MAX_ROWS), pad_token_id=0)
    assert sum(len(tree.children) for output in outputs for tree in token_trees(output)) > 100
    torch.testing.assert_close(logprobs_of(plain_model(MODEL_FOLDER), batch), batch.logprobs, rtol=0, atol=TOLERANCE)
    # Siblings that see one another.
    wrong = replace(batch, sees=torch.ones_like(batch.sees).tril())
    off = (logprobs_of(plain_model(MODEL_FOLDER), wrong) - batch.logprobs).abs()
    assert off.max() > 10 * TOLERANCE


def num_compared(outputs: list[Any], merge: Merge, moving: Moving, folder: Path) -> int:
    """Compare the logprobs of all tokens that no plan has forced; return their number."""
    batch = TreeBatch.of(pack(laid_out(outputs, merge, moving), MAX_ROWS), pad_token_id=0)
    free, ours = is_free(batch), logprobs_of(plain_model(folder), batch, never_sampled=FORCED)
    torch.testing.assert_close(ours[free], batch.logprobs[free], rtol=0, atol=TOLERANCE)
    assert batch.logprobs[~free].eq(0).all()
    return int(free.sum())


@pytest.mark.parametrize(("merge", "moving", "name"), pairs(WAYS, FAMILIES))
def test_random_trees_of_random_models(merge: Merge, moving: Moving, name: str) -> None:
    """Nested ones, of two families; what was forced has a logprob of 0, and cannot be compared."""
    total = 0
    for seed in range(HISTORIES):
        outputs = outputs_of(random_history(merge, seed, architecture=name))
        total += num_compared(outputs, merge, moving, model_folder(name))
    assert total > 400


PARTIAL: dict[str, dict[str, Any]] = {
    "first": {"block_on": "sync", "join_when": 1},
    "first-at-once": {"block_on": "promise", "join_when": 1, "prefixes": ((5,), (9, 6), (7,))},
    "oldest": {"block_on": "sync", "names": "Oldest"},
    "newest": {"block_on": "sync", "names": "Newest"},
    "dropped": {"block_on": "sync", "unjoined_at_end": "cancel"},
}
"""Joins that are not with all children."""


@pytest.mark.parametrize(("partial", "merge"), pairs([(partial,) for partial in PARTIAL], get_args(Merge)))
def test_joins_with_some_children(partial: str, merge: Merge) -> None:
    """A cancelled child's tokens are targets like any other's, and in nobody's context."""
    outputs = outputs_of(random_history(merge, 0, **PARTIAL[partial]))
    assert num_compared(outputs, merge, "computed", model_folder()) > 50
    children = [child for output in outputs for each in output.outputs for child in each.children]
    assert any(child.cancelled for child in children) == bool({"join_when", "unjoined_at_end"} & {*PARTIAL[partial]})


@pytest.mark.parametrize(
    ("merge", "moving"),
    [
        ("concatenate", "computed"),
        ("overlap", "computed"),
        full("sequential", "computed"),
        full("sequential", "copied"),
    ],
)
def test_contexts_that_are_cut(merge: Merge, moving: Moving) -> None:
    """Each stretch of tokens sees what its context was, and later ones do not see what was replaced."""
    outputs = [each for seed in range(2) for each in outputs_of(random_history(merge, seed, replaces=True))]
    joins = [join for output in outputs for tree in token_trees(output) for each in tree.walk() for join in each.joins]
    assert sum(join.num_replaced > 0 for join in joins) > 20
    assert num_compared(outputs, merge, moving, model_folder()) > 100


LOSSES: dict[str, tuple[int, type[Run], tuple[int, ...]]] = {
    "pressure": (4, Run, (1, 2, 3)),
    "resets": (400, ResettingRun, (1, 3)),
}
"""Spare blocks, how the engine is run, and which histories lose injected KV that way."""


@pytest.mark.paths
@pytest.mark.parametrize(("merge", "moving"), [("overlap", "computed"), full("sequential", "copied")])
@pytest.mark.parametrize("name", LOSSES if IS_V1 else ["pressure"])
def test_injected_kv_that_is_lost(name: str, merge: Merge, moving: Moving) -> None:
    """Whoever loses it sees text from then on, and its output says since when."""
    (spare_blocks, run_type, seeds), total, trees = LOSSES[name], 0, []
    for seed in seeds:
        history = random_history(merge, seed, max_model_len=256, max_children=3, spare_blocks=spare_blocks)
        outputs = outputs_of(history, run_type)
        total += num_compared(outputs, merge, moving, model_folder())
        trees += [tree for output in outputs for root in token_trees(output) for tree in root.walk()]
    assert total > 150 and sum(len(tree.recomputed_at) for tree in trees) > 0
    assert any(join.injected for tree in trees for join in tree.joins)


DETACHED_OR_JOINED: list[tuple[BlockOn, Merge]] = [
    ("never", "concatenate"),
    ("sync", "concatenate"),
    ("sync", "overlap"),
]


@pytest.mark.parametrize(("block_on", "merge", "child_context"), pairs(DETACHED_OR_JOINED, get_args(ChildContext)))
def test_children_of_other_contexts(block_on: BlockOn, merge: Merge, child_context: ChildContext) -> None:
    """Detached ones, and such as have not seen their parent's trigger, or nothing of it: their KV is not injected."""
    changes = {"block_on": block_on, "child_context": child_context, "prefixes": ((5,), (9, 6))}
    outputs = outputs_of(random_history(merge, 0, **changes))
    assert num_compared(outputs, merge, "computed", model_folder()) > 50


CASES: dict[str, dict[str, Any]] = {"cut": {"replaces": True}, "detached": {"block_on": "never"}}
"""`mytests.training.test_written_rows` has the others: there rows are those of layouts."""


def logprobs_of_row(row: PlainRow) -> torch.Tensor:
    """What transformers compute for each token after the first; plans force some tokens, which no row samples else."""
    with torch.inference_mode():
        logits = plain_model(model_folder())(torch.tensor([row.token_ids])).logits[0, :-1]
        logits[:, FORCED] = -torch.inf
    return logits.log_softmax(-1).gather(-1, torch.tensor(row.token_ids)[1:, None])[:, 0]


@pytest.mark.parametrize("case", CASES)
def test_each_plain_row_computes_what_the_engine_did(case: str) -> None:
    """And each sampled token is a target once."""
    total = 0
    outputs = outputs_of(random_history("concatenate", 0, **CASES[case]))
    for tree in (tree for output in outputs for tree in token_trees(output)):
        rows = plain_rows(tree)
        sampled = [part.end - part.start for each in tree.walk() for part in each.segments if part.origin == "sampled"]
        assert sum(sum(row.loss_mask) for row in rows) == sum(sampled)
        assert list(dict.fromkeys(row.sequence for row in rows)) == [each.name for each in tree.walk()]
        for row in rows:
            free = torch.tensor(row.loss_mask[1:]) & ~torch.isin(torch.tensor(row.token_ids[1:]), torch.tensor(FORCED))
            expected = torch.tensor(row.logprobs[1:])[free]
            torch.testing.assert_close(logprobs_of_row(row)[free], expected, rtol=0, atol=TOLERANCE)
            total += int(free.sum())
    assert total > 50
