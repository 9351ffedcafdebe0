# SPDX-License-Identifier: Apache-2.0
"""What upstream does with requests only inside its own modules: the one place that uses their private members."""

from typing import Any

from sequence_hooks.kv.transfer import Run
from sequence_hooks.v1.token_view import TokenView
from vllm.multimodal.inputs import MultiModalFeatureSpec
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request


def make_like(
    request: Request,
    request_id: str,
    prompt_token_ids: list[int],
    params: SamplingParams,
    mm_features: list[MultiModalFeatureSpec],
) -> Request:
    """A new request of the same client, with the same adapter, priority and cache as ``request``.

    If ``request`` has ended its reasoning, after which its grammar begins, the new request has, too.

    Args:
        prompt_token_ids: The caller has to update its block hashes.
        mm_features: The images and other inputs that stand for tokens of its prompt.
    """
    reasoning = request.structured_output_request
    made = Request(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling_params=params,
        pooling_params=None,
        mm_features=mm_features,
        client_index=request.client_index,
        arrival_time=request.arrival_time,
        lora_request=request.lora_request,
        cache_salt=request.cache_salt,
        priority=request.priority,
        trace_headers=request.trace_headers,
        session_id=request.session_id,
        reasoning_ended=None if reasoning is None else reasoning.reasoning_ended,
        reasoning_parser_kwargs=None if reasoning is None else reasoning.reasoning_parser_kwargs,
    )
    made._block_hasher = request._block_hasher
    # They name one request of another engine.
    made.kv_transfer_params = made.ec_transfer_params = None
    return made


def make_private(request: Request, number: int) -> None:
    """Let no other request find the KV of a new one, or of its tree, in the prefix cache, nor the new one theirs.

    Args:
        number: Of requests, so that no later one of the same name finds it either.
    """
    request.cache_salt = f"{number} {request.request_id}"
    request.block_hashes.clear()
    request.update_block_hashes()


def limit_tokens(request: Request, most: int | None) -> None:
    """Let a new request sample at most ``most`` tokens; None sets no limit."""
    if most is None or most >= request.max_tokens:
        return
    params = request.sampling_params
    assert params is not None
    request.max_tokens = most
    # In some releases nothing ends a request before these.
    params.min_tokens = min(params.min_tokens, most)


def begin_session(request: Request, params: SamplingParams) -> None:
    """Make everything that a request has so far its prompt, as upstream does in a session.

    Both of upstream's model runners then learn its tokens, regardless of the schedule.
    """
    assert params.max_tokens is not None, "upstream gives every request a number"
    request.prompt_token_ids = list(request.all_token_ids)
    request.num_prompt_tokens = len(request.prompt_token_ids)
    request._output_token_ids.clear()
    request.sampling_params, request.max_tokens = params, params.max_tokens
    request.skip_reading_prefix_cache = request.get_skip_reading_prefix_cache()


def cut_context(request: Request, num_kept: int) -> None:
    """Cut a request to its first ``num_kept`` tokens. It must have no KV after them, and get a session next."""
    del request._all_token_ids[num_kept:]
    request.prompt_token_ids = list(request.all_token_ids)
    request.num_prompt_tokens = num_kept
    request._output_token_ids.clear()
    # A prefix of the hashes would do, but only upstream knows how many tokens each of them is for.
    request.block_hashes.clear()
    request.update_block_hashes()


def discard_in_flight(request: Request) -> None:
    """Let upstream drop the tokens that a step in flight samples for a request, as it does for a session."""
    request.spec_token_ids = []
    request.drop_stale_output = True
    request.num_stale_output_tokens = request.num_in_flight_tokens
    request.num_output_placeholders = 0


def make_glue(owner: Request, run: Run, arrival_time: float, mm_features: list[MultiModalFeatureSpec]) -> Request:
    """A request that computes a ``run`` of the prompt of ``owner``. The token that it samples is not used.

    There may be many such requests, and the prompt may be long, so each has a view of it.

    Args:
        mm_features: The owner's images that the positions of the run's tokens depend on.
    """
    assert owner.prompt_token_ids is not None
    prompt: Any = TokenView(owner.prompt_token_ids, 0, run.end)
    glue = Request(
        request_id=f"{owner.request_id}_glue_{run.start}",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(temperature=0, max_tokens=1, detokenize=False),
        pooling_params=None,
        mm_features=mm_features,
        client_index=owner.client_index,
        arrival_time=arrival_time,
        lora_request=owner.lora_request,
        priority=owner.priority,
    )
    glue.num_computed_tokens = run.start
    return glue
