# SPDX-License-Identifier: Apache-2.0
"""Makes the request of a child."""

from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.v1.core.requests import make_like
from sequence_hooks.v1.core.sequence import V1Branch
from vllm.multimodal.inputs import PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


def end_of(place: PlaceholderRange) -> int:
    """The position behind the tokens that an image stands for."""
    return place.offset + place.length


def make_child(parent: V1Branch, spec: ChildSpec, params: SamplingParams, grammars: StructuredOutputManager) -> Request:
    """The request of a child: WAITING, without blocks, and not yet in a queue or a tree.

    Its prompt is what it shares of its parent's context, then the prefix.

    Args:
        params: The child's own, see `sequence_hooks.v1.core.params`.
        grammars: Compiles its grammar, if it has one.
    """
    request = parent.sequence.request
    # A context may be long: it is copied once.
    prompt: list[int] = request.all_token_ids[: spec.num_shared]
    prompt.extend(spec.prefix_token_ids)
    # Their KV is shared, and only recomputed if it is lost: then the encoder's cache may still have them.
    shared = [each for each in request.mm_features if end_of(each.mm_position) <= spec.num_shared]
    child = make_like(request, spec.request_id, prompt, params, shared)
    if spec.context == "parent":
        # Its first blocks are those of its parent, whose hashes are known.
        child.block_hashes = list(request.block_hashes)
    child.update_block_hashes()
    if child.use_structured_output:
        grammars.grammar_init(child)
    return child
