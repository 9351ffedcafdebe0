# SPDX-License-Identifier: Apache-2.0
"""Makes the request of a child."""

from sequence_hooks.rules import ChildPlan
from sequence_hooks.v1.core.requests import make_like
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


def make_child(parent: V1Branch, plan: ChildPlan, params: SamplingParams, grammars: StructuredOutputManager) -> Request:
    """The request of a child: WAITING, without blocks, and not yet in a queue or a tree.

    Its prompt is what it shares of its parent's context, then the prefix.

    Args:
        params: The child's own, see `sequence_hooks.v1.core.params`.
        grammars: Compiles its grammar, if it has one.
    """
    request = parent.sequence.request
    prompt = [*request.all_token_ids[: plan.num_shared], *plan.prefix_token_ids]
    child = make_like(request, plan.request_id, prompt, params)
    if plan.context == "parent":
        # Its first blocks are those of its parent, whose hashes are known.
        child.block_hashes = list(request.block_hashes)
    child.update_block_hashes()
    if child.use_structured_output:
        grammars.grammar_init(child)
    return child
