# SPDX-License-Identifier: Apache-2.0
"""Requests that share an engine which injects KV, with enough of it or too little."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

from mytests.fuzz.fuzzing import History, Request, Setup
from mytests.fuzz.injection_oracle import Layout
from mytests.harness.dialect import DIALECT

AMPLE = Setup(
    position_rule="sequential", spare_blocks=100, max_num_batched_tokens=128, prefixes=((5,), (9, 6)), separator="w007"
)
TIGHT = replace(AMPLE, block_on="sync", max_model_len=160, max_num_seqs=32, max_child_depth=2, spare_blocks=6)
if DIALECT.gives_up_all_kv:
    # Blocks are larger, too.
    TIGHT = replace(TIGHT, block_on="promise", max_model_len=256, max_children=3, spare_blocks=24)


def random_requests(setup: Setup) -> History:
    """Ten simultaneous requests, whose sequences sample promises and syncs at random."""
    draw = Random(0)
    return History(setup, tuple(Request(draw.randint(1, 60), draw.randint(6, 14), i, i) for i in range(10)))


def everybody(layouts: Iterable[Layout]) -> list[Layout]:
    """The layouts of all sequences of all requests."""
    return [layout for root in layouts for layout in root.walk()]
