# SPDX-License-Identifier: Apache-2.0
"""What is kept of a joined child's sequence: its output, and the length of its context.

A tree lives as long as its request. If each child kept its whole context, a request with many children would hold as
many copies of its own context.
"""

from sequence_hooks.tree.transcript import output_of
from vllm.core.hooked_sequence import V0Branch
from vllm.core.sequence_data import forget_context
from vllm.sequence import Sequence


def forget_joined(parent: V0Branch) -> None:
    """Drop the contexts of joined children, of detached ones that have finished, and of their descendants."""
    for branch in parent.take_releasable():
        # What a caller is told is made now, if no join has asked for it.
        output_of(branch)
        _forget(branch.sequence.seq)
        if not branch.root.has_detached_below:
            branch.sequence.seq.output_logprobs = []


def _forget(seq: Sequence) -> None:
    """Drop the context and the tokens' texts of a finished sequence."""
    context = forget_context(seq.data)
    seq.inputs = {**seq.inputs, "prompt": None, "prompt_token_ids": context}
    seq.tokens = None
