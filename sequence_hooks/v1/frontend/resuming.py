# SPDX-License-Identifier: Apache-2.0
"""Lets a sequence that waits for its caller go on: the front end checks and encodes, the engine's scheduler resumes.

To the engine a resumption is a request that its scheduler takes out of the way. It has the id of the request whose
sequence waits, so that upstream sends it to the same engine where there are several.
"""

from typing import Any

from sequence_hooks.results import Waiting
from sequence_hooks.tree.resume import Given, checked_ids, encode_within, nobody_waits
from sequence_hooks.v1.frontend.output_processor import HookOutputProcessor
from sequence_hooks.v1.frontend.replay import FrontBranch
from sequence_hooks.v1.wire import RESUME
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest


def awaiting(processor: HookOutputProcessor) -> list[Waiting]:
    """The sequences that wait for their callers, in the order in which they were BLOCKED."""
    return sorted(processor.waits(), key=lambda each: each.since)


def room_of(processor: HookOutputProcessor, request_id: str, max_model_len: int) -> int:
    """How many tokens a sequence that waits has room for; raises a `ValueError` if no such sequence waits."""
    return _room(_waiting(processor, request_id), max_model_len)


def resumption(
    processor: HookOutputProcessor, request_id: str, given: Given, max_model_len: int, vocab_size: int | None
) -> EngineCoreRequest:
    """What to send to the engine, so that a sequence goes on with ``given`` after its children's results.

    Raises:
        ValueError: no such sequence waits, or ``given`` is not what it could go on with.
    """
    branch = _waiting(processor, request_id)
    room = _room(branch, max_model_len)
    token_ids: Any = encode_within(given, processor.tokenizer, room) if isinstance(given, str) else given
    token_ids = checked_ids(token_ids, room, vocab_size)
    processor.resumed(branch)
    return EngineCoreRequest(
        request_id=branch.root.sequence.engine_id,
        prompt_token_ids=[0],
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=1, extra_args={RESUME: [branch.sequence.engine_id, list(token_ids)]}),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def _waiting(processor: HookOutputProcessor, request_id: str) -> FrontBranch:
    waiting = {branch.request_id: branch for branch in processor.awaiting()}
    if request_id not in waiting:
        raise nobody_waits(request_id, waiting)
    return waiting[request_id]


def _room(branch: FrontBranch, max_model_len: int) -> int:
    return max_model_len - len(branch.sequence.prompt_token_ids) - len(branch.sequence.output_token_ids)
