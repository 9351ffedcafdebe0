# SPDX-License-Identifier: Apache-2.0
"""The trees of a front end's requests at this moment."""

from collections.abc import Iterator
from itertools import chain

from sequence_hooks.serving.live.trees import LiveRequests, Tree, summaries, tree_of
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.frontend.request_state import HookRequestState, TreeRequestState, external_id_of
from vllm.v1.engine.output_processor import RequestState


def live_requests(processor: HookOutputProcessor, limit: int, num_tokens: int) -> LiveRequests:
    """See `sequence_hooks.serving.live.routes.Watched`."""
    running = (_tree_of(state, num_tokens) for state in processor.request_states.values())
    return summaries(running, _recent(processor, num_tokens), limit)


def live_tree(processor: HookOutputProcessor, request_id: str, num_tokens: int) -> Tree:
    """See `sequence_hooks.serving.live.routes.Watched`."""
    named = (state for state in processor.request_states.values() if external_id_of(state) == request_id)
    found = chain((_tree_of(state, num_tokens) for state in named), _recent(processor, num_tokens))
    return next((tree for tree in found if tree[0].request_id == request_id), ())


def _recent(processor: HookOutputProcessor, num_tokens: int) -> Iterator[Tree]:
    yield from (tree_of(root, num_tokens) for root in processor.trees.recent)
    yield from (each.tree(num_tokens) for each in processor.recent)


def _tree_of(state: RequestState, num_tokens: int) -> Tree:
    assert isinstance(state, HookRequestState)
    return tree_of(state.branch, num_tokens) if isinstance(state, TreeRequestState) else state.alone().tree(num_tokens)
