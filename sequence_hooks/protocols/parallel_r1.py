# SPDX-License-Identifier: Apache-2.0
"""Parallel-R1 (arXiv 2509.07980): the model opens a block, two paths are decoded side by side, and it sums them up::

    Sampled:      <Parallel>
    Children:     <Path>...</Path>     <Path>...</Path>
    After them:   </Parallel>\\n<Summary>...</Summary>, with both paths in the context

Read in zhengkid/Parallel-R1, commit 7c3a8f3, ``parallel_thinking_loop_v3.py``: a client of an unmodified vLLM, so
positions are sequential and the second path's tokens see the first path's once they are merged. The number of paths is
a setting, ``children_per_promise``. Paths are sampled at temperature 1, whatever the request's, and do not fork. The
six tags are one added token each.

Here it differs: there generation ends after the fourth block, and a summary without ``</Summary>`` gets one.

Not confirmed: which of its checkpoints are public.
"""

from collections.abc import Sequence

from sequence_hooks.config.notations import Notation
from sequence_hooks.handlers import Merged, PrefixOf
from sequence_hooks.results import ChildOutput

NOTATION = Notation(
    fields={
        "promise_token": "<Parallel>",
        "block_on": "promise",
        "children_per_promise": 2,
        "child_prefix": "<Path>",
        "child_stop": "</Path>",
        "child_sampling_params": {"temperature": 1.0},
        "child_merge_strategy": "sequence_hooks.protocols.parallel_r1.join",
    },
    one_token=("<Parallel>", "</Parallel>", "<Path>", "</Path>", "<Summary>", "</Summary>"),
)
"""What it configures."""


def join(children: Sequence[ChildOutput]) -> Merged:
    """All paths with their tags, then what their parent sums them up after."""
    paths = [piece for child in children for piece in (PrefixOf(child), child, "</Path>")]
    return [*paths, "</Parallel>\n<Summary>"]
