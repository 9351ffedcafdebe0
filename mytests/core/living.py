# SPDX-License-Identifier: Apache-2.0
"""A tree at one moment, as the page of running trees is told of it."""

import dataclasses

from sequence_hooks.serving.live.trees import LiveSequence, Tokens

ROOT = LiveSequence(
    *("r", None, 0, False, "blocked", "children", 3.0, 4, None, 1.0, None),
    last_tokens=(Tokens("sampled", None, (97, 33)), Tokens("merged", "r_child_0", (66, 10, 67))),
)
CHILD = dataclasses.replace(ROOT, request_id="r_child_0", parent_id="r", state="finished", waits_for=None)
