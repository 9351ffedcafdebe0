# SPDX-License-Identifier: Apache-2.0
"""Batches of trees as tensors, and their masks."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask, flex_attention
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from mytests.harness.training_trees import child, fork_and_join
from sequence_hooks.training import (
    IGNORED,
    NO_SEQUENCE,
    Merge,
    TreeBatch,
    TreeRows,
    additive_mask,
    block_mask,
    dense_mask,
    gather_logprobs,
    lay_out,
    mask_mod,
    model_inputs,
    pack,
)

MERGES = get_args(Merge)
PAD = 0
VOCABULARY = 128


def laid_out(merge: Merge = "overlap", *results: str) -> TreeRows:
    """A tree whose children return ``results``; each sampled token of its root has a logprob of -1."""
    tree = fork_and_join(*(child(text, text) for text in results or ("aa", "bbb")))
    return lay_out([replace(tree, logprobs=(-1.0,) * len(tree.output_token_ids))], merge)


def packed(merge: Merge = "overlap") -> TreeBatch:
    """Two rows, the first with two trees, the second shorter; both padded."""
    return TreeBatch.of([*pack([laid_out(merge), laid_out(merge, "c")], 99), laid_out(merge, "dd")], PAD, 80)


def logits_of(batch: TreeBatch) -> torch.Tensor:
    """Logits that depend on the place."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*batch.input_ids.shape, VOCABULARY, generator=generator)


class TestColumns:
    def test_rows_are_padded(self) -> None:
        """Up to the longest, or to a given length, with places that predict nothing; one too long is refused."""
        short, long = laid_out("overlap", "c"), laid_out()
        batch = TreeBatch.of([short, long], PAD)
        assert batch.input_ids.shape == (2, len(long))
        assert batch.input_ids[0].tolist() == [*short.token_ids, *[PAD] * (len(long) - len(short))]
        assert batch.position_ids[1].tolist() == list(long.positions)
        assert not batch.loss_mask[0, len(short) :].any()
        with pytest.raises(ValueError, match="a row of 15 places does not fit into 14"):
            TreeBatch.of([long], PAD, 14)

    def test_each_target_is_at_its_row(self) -> None:
        """With its sequence, and the engine's logprob if there is one."""
        rows = laid_out()
        batch = TreeBatch.of([rows], PAD)
        for place, target in enumerate(rows.targets):
            told = batch.target_ids[0, place].item(), int(batch.sequence_ids[0, place])
            if target is None:
                assert (*told, batch.logprobs[0, place].item()) == (IGNORED, NO_SEQUENCE, 0.0)
            else:
                assert (told[0], batch.sequences[told[1]]) == (target.token_id, target.sequence)
                logprob = batch.logprobs[0, place]
                assert logprob == -1.0 if target.sequence == "root" else logprob.isnan()

    def test_labels_are_one_place_further_on(self) -> None:
        """So that a model that shifts them predicts each target from its row; the last one needs a place more."""
        batch = packed()
        assert batch.labels[:, 0].eq(IGNORED).all()
        assert batch.labels[:, 1:].equal(batch.target_ids[:, :-1])
        with pytest.raises(ValueError, match="one place more"):
            _ = TreeBatch.of([laid_out()], PAD).labels

    def test_models_of_transformers_get_labels_and_a_mask(self) -> None:
        """By the names of their arguments."""
        batch = packed()
        inputs = model_inputs(batch)
        assert inputs["input_ids"] is batch.input_ids and inputs["position_ids"] is batch.position_ids
        assert inputs["labels"].equal(batch.labels) and inputs["attention_mask"].equal(dense_mask(batch))

    def test_it_moves_to_another_device(self) -> None:
        """With all of its tensors."""
        batch = packed().to("meta")
        assert batch.sequences == packed().sequences
        assert {value.device.type for value in vars(batch).values() if isinstance(value, torch.Tensor)} == {"meta"}


class TestLogprobs:
    def test_they_are_those_of_the_targets(self) -> None:
        """The mean of the negative ones is the cross entropy."""
        batch = packed()
        logits = logits_of(batch)
        logprobs = gather_logprobs(logits, batch)
        loss = cross_entropy(logits.flatten(0, 1), batch.target_ids.flatten(), ignore_index=IGNORED)
        assert logprobs[~batch.loss_mask].eq(0.0).all()
        torch.testing.assert_close(-logprobs.sum() / batch.loss_mask.sum(), loss)

    def test_they_have_gradients(self) -> None:
        """At the places that predict something alone."""
        batch = packed()
        logits = logits_of(batch).requires_grad_()
        gather_logprobs(logits, batch).sum().backward()
        assert logits.grad is not None
        assert logits.grad.ne(0).any(-1).equal(batch.loss_mask)


@pytest.mark.parametrize("merge", MERGES)
class TestMasks:
    def test_the_dense_mask_is_what_rows_see(self, merge: Merge) -> None:
        """The two trees of a row do not see each other, nor the padding, which sees itself."""
        trees = laid_out(merge), laid_out(merge, "c")
        num_places = sum(map(len, trees))
        mask = dense_mask(TreeBatch.of(pack(trees, 99), PAD, num_places + 5))[0, 0]
        for tree, start in zip(trees, (0, len(trees[0])), strict=True):
            for row in range(len(tree)):
                assert mask[start + row].nonzero().flatten().sub(start).tolist() == tree.seen_by(row)
        assert not mask[:num_places, num_places:].any()
        assert mask[num_places:, num_places:].diagonal().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_additive_mask_is_the_same(self, dtype: torch.dtype, merge: Merge) -> None:
        """In any floating-point type, without infinities, which some attention kernels turn into NaN."""
        mask = additive_mask(packed(merge), dtype)
        assert mask.eq(0).equal(dense_mask(packed(merge))) and mask.dtype == dtype and mask.isfinite().all()

    @pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
    def test_the_block_mask_is_the_same(self, merge: Merge) -> None:
        """Place by place, and in what attention computes under it."""
        batch = packed(merge)
        num_rows, length = batch.input_ids.shape
        assert create_mask(mask_mod(batch), num_rows, 1, length, length, device="cpu").equal(dense_mask(batch))
        query, key, value = torch.randn(3, num_rows, 2, length, 16, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            attended = flex_attention(query, key, value, block_mask=block_mask(batch))
        expected = scaled_dot_product_attention(query, key, value, attn_mask=dense_mask(batch))
        torch.testing.assert_close(attended, expected)

    def test_blocks_that_nobody_sees_are_skipped(self, merge: Merge) -> None:
        """Two trees, each longer than a block: neither's blocks are computed for the other."""
        tree = laid_out(merge, "abcdefgh" * 40)
        batch = TreeBatch.of(pack([tree] * 2, 2 * len(tree)), PAD)
        blocks = block_mask(batch).to_dense()[0, 0]
        border = len(tree) // 128
        assert blocks[border + 1 :, :border].sum() == 0
