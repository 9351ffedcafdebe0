# SPDX-License-Identifier: Apache-2.0
"""Steps on packed trees have the loss and the gradient of their sequences one by one, and the examples train."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
import rl_loop
import sft_on_trees
import torch
import train_notations
from forkjoin_engine import GREEDY, IS_FORK, hooks_for, open_engine
from forkjoin_packing import batches
from forkjoin_reference import MODEL_FOLDER
from forkjoin_task import Branch, Tree, held_out_prompts, training_trees
from notations import NOTATIONS, Notation
from rl_on_trees import task_of
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from mytests.harness.tiers import ON_V1_IN_FULL, pairs
from mytests.harness.training_models import FAMILIES, WAYS, Decoding, logits_of, tiny_model
from mytests.harness.training_trees import Simulated, random_tree
from sequence_hooks.training import (
    Fork,
    InsertedText,
    Merge,
    Moving,
    SampledText,
    TextTree,
    TokenTree,
    TreeBatch,
    encoded,
    gather_logprobs,
    lay_out,
    model_inputs,
    pack,
)

pytestmark = [pytest.mark.model, *ON_V1_IN_FULL]

ROW_LENGTH = 288
"""In tokens, as in `examples/train_forkjoin.py`."""

TOLERANCE = 1e-5
"""For float32, relative to the loss, and to the largest gradient of a model that is not trained."""

GRADIENT_TOLERANCE = 2e-4
"""Relative to the largest gradient. The model is trained, so what it is the sum of nearly cancels out."""


def text_tree(tree: Tree) -> TextTree:
    """A tree of the task; what is merged in it need not be what its children answer, so it is written as text."""
    prompt, *others = tree.parent
    output: list[SampledText | InsertedText | Fork] = []
    for number, piece in enumerate(others, 2):
        output.append(SampledText(piece.text) if piece.sampled else InsertedText(piece.text))
        output += [Fork(_child(f"{number}", branch)) for branch in tree.children if branch.fork == number]
    return TextTree("parent", prompt.text, tuple(output))


def _child(name: str, branch: Branch) -> TextTree:
    prefix, answer = branch.pieces
    return TextTree(name, prefix.text, (SampledText(answer.text),))


@pytest.mark.floats
def test_text_is_trained_as_in_the_packing_of_the_example() -> None:
    """Both have the same loss and the same gradient for the same trees, in fewer rows: last tokens have none."""
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    expected = next(batches(training_trees(3), tokenizer, rows=4, length=ROW_LENGTH))
    logits = model(expected.tokens, position_ids=expected.positions, attention_mask=expected.mask).logits
    loss = cross_entropy(logits.flatten(0, 1), expected.labels.flatten())
    loss.backward()
    gradient = model.model.embed_tokens.weight.grad.clone()
    largest = gradient.abs().max().item()
    model.zero_grad()
    rows, num_targets = [], int((expected.labels >= 0).sum())
    for tree in training_trees(3):
        rows.append(lay_out([encoded(text_tree(tree), tokenizer.encode)], "concatenate"))
        if sum(target is not None for each in rows for target in each.targets) == num_targets:
            break
    ours = model(**model_inputs(TreeBatch.of(pack(rows, ROW_LENGTH), tokenizer.pad_token_id, ROW_LENGTH + 1))).loss
    ours.backward()
    torch.testing.assert_close(ours, loss, rtol=TOLERANCE, atol=0)
    assert largest > 0
    torch.testing.assert_close(
        model.model.embed_tokens.weight.grad, gradient, rtol=0, atol=GRADIENT_TOLERANCE * largest
    )


def untrained_model() -> Any:
    """The tiny fork-join model with random weights."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL_FOLDER))


@pytest.mark.parametrize(("merge", "with_trl"), [*product(get_args(Merge), [False]), ("overlap", True)])
def test_the_example_trains(merge: Merge, with_trl: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Its loss falls, for every way to merge; TRL's trainer takes what the collator returns, and trains on the same."""
    model, tokenizer = untrained_model(), AutoTokenizer.from_pretrained(MODEL_FOLDER)
    same = list(islice(sft_on_trees.rows_of_trees(tokenizer, merge, 0), 6))
    collate = sft_on_trees.Collator(tokenizer.pad_token_id)
    before = model(**collate(same)).loss.item()
    if with_trl:
        pytest.importorskip("trl")
        arguments = Namespace(steps=5, learning_rate=5e-3, trees=6, seed=0)
        sft_on_trees.train_with_trl(model, tokenizer, same, collate, arguments)
    else:
        sft_on_trees.train(model, iter([same] * 5), collate, steps=5, learning_rate=5e-3)
        assert capsys.readouterr().out.startswith(f"step 0: loss {before:.4f}")
    assert model(**collate(same)).loss.item() < 0.9 * before


@pytest.mark.parametrize("notation", NOTATIONS.values(), ids=NOTATIONS)
def test_a_published_notation_is_trained(
    notation: Notation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its script saves a model that knows the notation's tags."""
    train_notations.main([notation.protocol, "--steps", "2", "--trees", "2", "--output", str(tmp_path)])
    assert "step 1: loss" in capsys.readouterr().out
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.vocab_size == len(AutoTokenizer.from_pretrained(tmp_path)) > 45
    torch.use_deterministic_algorithms(False)


def test_no_shipped_model_is_overwritten_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Who trains says where the model goes."""
    with pytest.raises(SystemExit):
        train_notations.parse_arguments(["hpd"])
    assert "--output" in capsys.readouterr().err


def test_wrong_results_are_not_trained() -> None:
    """In half of the trees of each example; the parents of such children are."""
    for trees in (sft_on_trees.training_trees(0), NOTATIONS["hpd"].training_trees(0)):
        some = list(islice(trees, 40))
        children = [piece.child for tree in some for piece in tree.output if isinstance(piece, Fork)]
        assert {child.is_trained for child in children} == {True, False}
        assert all(tree.is_trained for tree in some)


@pytest.mark.full
def test_an_engine_gets_weights_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of two steps it samples with the model's weights; a loop whose engine has some old ones ends."""
    engine, (prompt,) = open_engine(hooks_for("sync"), seed=0), held_out_prompts(1, 0, "sync")
    if not IS_FORK:
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="not the model's"):
            patched.setattr(rl_loop, "pack_tied_head", lambda model: None)
            rl_loop.train(engine, task_of("tree", prompts=2, samples=2), steps=1)
    assert len(rl_loop.train(engine, task_of("branch", prompts=4, samples=4), steps=2)) == 3
    (output,) = engine.generate([prompt], GREEDY, use_tqdm=False)
    versions = {each.weight_version for each in output.outputs[0].segments}
    assert versions == ({None} if IS_FORK else {None, "branch 2"})


LENGTH = 500
"""Of rows that are quickly decoded token by token."""


def random_trees() -> Iterator[TokenTree]:
    """Nested ones, neither long nor short."""
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


def decoded_one_by_one(model: Any, trees: Sequence[TokenTree], merge: Merge) -> torch.Tensor:
    """The logprob of each sampled token."""
    found = []
    for tree in trees:
        token_ids = {each.name: each.output_token_ids for each in tree.walk()}
        for (name, position), computed in Simulated(tree, merge, Decoding(model)).found.items():
            found.append(computed.logits.log_softmax(-1)[token_ids[name][position]])
    return torch.stack(found)


@pytest.mark.floats
@pytest.mark.parametrize(("merge", "moving", "family"), pairs(WAYS, FAMILIES))
def test_packed_trees_are_as_sequences_one_by_one(merge: Merge, moving: Moving, family: str) -> None:
    """In the sum of all logprobs, and in its gradient by every parameter."""
    model, rows = tiny_model(family), pack([lay_out([tree], merge, moving=moving) for tree in TREES], LENGTH)
    batch = TreeBatch.of(rows, pad_token_id=0)
    packed = gather_logprobs(logits_of(model, batch), batch)
    one_by_one = decoded_one_by_one(model, TREES, merge)
    assert len(rows) < len(TREES)
    assert packed.count_nonzero() == len(one_by_one) > 150
    torch.testing.assert_close(packed.sum(), one_by_one.sum(), rtol=TOLERANCE, atol=0)
    ours, theirs = gradients(model, packed), gradients(model, one_by_one)
    largest = max(each.abs().max().item() for each in theirs.values())
    assert largest > 0
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE * largest)
