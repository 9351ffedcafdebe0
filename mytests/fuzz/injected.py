# SPDX-License-Identifier: Apache-2.0
"""Histories of the fuzzer whose joins inject KV."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from hypothesis import strategies as st

from mytests.fuzz.draw import ARCHITECTURES, FEATURES, histories
from mytests.fuzz.history import History
from sequence_hooks.config.choices import PositionRule

_REFUSED = {"mistral", "mamba2", "falcon_h1", "granitemoehybrid", "lfm2"}
"""Architectures in which all layers have a window, or one has a state."""

_WITHOUT = {"prompt_logprobs"}
"""Features of requests whose oracle reads more logits than that of injection has."""


@st.composite
def injected(
    draw: st.DrawFn,
    features: Sequence[str] = FEATURES,
    architectures: Sequence[str] = ARCHITECTURES,
) -> History:
    """Those of `mytests.fuzz.draw.histories`, without what cannot be combined with injection."""
    used = tuple(feature for feature in features if feature not in _WITHOUT)
    history = draw(histories(used, [each for each in architectures if each not in _REFUSED]))
    setup = history.setup
    injecting = replace(
        setup,
        block_on="promise" if setup.block_on == "never" else setup.block_on,
        merges=True,
        merges_prefixes=not setup.promise_text and draw(st.sampled_from([False, False, True])),
        position_rule=draw(st.sampled_from(get_args(PositionRule))),
        # A child may have computed its last token, too.
        async_output=False,
    )
    return replace(history, setup=injecting)
