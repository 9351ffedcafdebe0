# SPDX-License-Identifier: Apache-2.0
"""Histories with joins of several children, whose KV is injected."""

from dataclasses import replace

from mytests.fuzz.fuzzing import Request, Setup
from mytests.fuzz.injection_runs import Scripted, samples
from mytests.fuzz.model import EOS, PROMISE, SYNC
from mytests.fuzz.params import Params
from sequence_hooks.config.choices import BlockOn, PositionRule

AMPLE = Setup(position_rule="sequential", spare_blocks=100, max_num_seqs=16, max_num_batched_tokens=512)
SKEWED = {5: samples(26, EOS), 6: samples(1, EOS), 7: samples(9, EOS), 8: (EOS,)}
NESTED = {5: samples(1, PROMISE) + samples(2, SYNC) + samples(4, EOS), 6: samples(5, PROMISE, EOS)}
TWO_JOINS = samples(2, PROMISE) + samples(3, PROMISE, SYNC) + samples(4, PROMISE) + samples(1, SYNC) + samples(5, EOS)
SETUP = replace(AMPLE, prefixes=((5,), (9, 6), (7,), (8,)))
REQUESTS = Request(20, max_tokens=64), Request(29, max_tokens=64, topic=1)
MANY_CHILDREN = {
    "skewed": Scripted(replace(SETUP, separator="w007"), REQUESTS, (), TWO_JOINS, SKEWED),
    "nested": Scripted(replace(SETUP, prefixes=((5,), (9, 6)), max_child_depth=2), REQUESTS, (), TWO_JOINS, NESTED),
    "ended by length": Scripted(replace(SETUP, child_max_tokens=7), REQUESTS, (), TWO_JOINS, dict.fromkeys(SKEWED, ())),
    "ended by stop tokens": Scripted(
        replace(SETUP, of_children=Params(stop_token_ids=tuple(range(100, 200)))),
        REQUESTS,
        (),
        TWO_JOINS,
        dict.fromkeys(SKEWED, ()),
    ),
    "outliving their parent": Scripted(SETUP, REQUESTS, (), samples(2, PROMISE, EOS), SKEWED),
}

RULES: list[tuple[BlockOn, PositionRule]] = [
    ("promise", "sequential"),
    ("sync", "overlap"),
    ("promise", "overlap"),
    ("sync", "sequential"),
]
