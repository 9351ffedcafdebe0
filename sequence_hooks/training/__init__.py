# SPDX-License-Identifier: Apache-2.0
"""Trees as training data: the rows of a forward pass that computes what an engine has computed::

    trees = token_trees(output)                          a finished request of either engine, or
    trees = [encoded(text_tree, tokenizer.encode)]       a tree written as text
    rows = pack([lay_out(trees, "concatenate")], 4096)   one layout per request, several beside each other in a row
    batch = TreeBatch.of(rows, pad_token_id)
    logits = model(batch.input_ids, position_ids=batch.position_ids, attention_mask=additive_mask(batch)).logits
    gather_logprobs(logits, batch)                       equals batch.logprobs

It owns the layout of finished trees in rows, and the masks and positions that go with it. It needs torch, and must
import neither vLLM nor the trees of an engine: a tree comes as the values of `sequence_hooks.results`, or as text.
``docs/training.md`` explains it.
"""

from sequence_hooks.training.batch import IGNORED, NO_SEQUENCE, NO_VERSION, TreeBatch, gather_logprobs
from sequence_hooks.training.continuable import continuable
from sequence_hooks.training.copies import copy_kv, kv_copies, register_attention
from sequence_hooks.training.groups import lay_out_group
from sequence_hooks.training.layout import Merge, Moving, lay_out
from sequence_hooks.training.masks import additive_mask, block_mask, dense_mask, mask_mod, model_inputs
from sequence_hooks.training.outputs import token_trees
from sequence_hooks.training.plain import PlainRow, plain_rows
from sequence_hooks.training.rows import Stretch, Target, TooManyRows, TreeRows, pack
from sequence_hooks.training.text import (
    Fork,
    InsertedText,
    PrefixOf,
    ResultOf,
    SampledText,
    TextTree,
    continuing,
    encoded,
)
from sequence_hooks.training.token_tree import TokenTree
from sequence_hooks.training.trainers import agent_loop_outputs, trl_rollout

__all__ = [
    "IGNORED",
    "NO_SEQUENCE",
    "NO_VERSION",
    "Fork",
    "InsertedText",
    "Merge",
    "Moving",
    "PlainRow",
    "PrefixOf",
    "ResultOf",
    "SampledText",
    "Stretch",
    "Target",
    "TextTree",
    "TokenTree",
    "TooManyRows",
    "TreeBatch",
    "TreeRows",
    "additive_mask",
    "agent_loop_outputs",
    "block_mask",
    "continuable",
    "continuing",
    "copy_kv",
    "dense_mask",
    "encoded",
    "gather_logprobs",
    "kv_copies",
    "lay_out",
    "lay_out_group",
    "mask_mod",
    "model_inputs",
    "pack",
    "plain_rows",
    "register_attention",
    "token_trees",
    "trl_rollout",
]
