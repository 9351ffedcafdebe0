# SPDX-License-Identifier: Apache-2.0
"""A tree at one moment, as the page of running trees is told of it."""

import dataclasses

from sequence_hooks.serving.live.trees import LiveSequence, Tokens

ROOT = LiveSequence(
    request_id="r",
    state="blocked",
    waits_for="children",
    since=3.0,
    num_output_tokens=4,
    started=1.0,
    last_tokens=(Tokens("sampled", None, (97, 33)), Tokens("merged", "r_child_0", (66, 10, 67))),
)
CHILD = dataclasses.replace(ROOT, request_id="r_child_0", parent_id="r", state="finished", waits_for=None)
