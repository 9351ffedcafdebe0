# SPDX-License-Identifier: Apache-2.0
"""Lets a sequence that waits for its caller go on: the front end checks and encodes, the engine's scheduler resumes.

To the engine a resumption is a request with an id that no other request has; its scheduler takes it out of the way.
"""

from typing import Any

from sequence_hooks.resuming import Given, checked_ids, encode_within, nobody_waits
from sequence_hooks.v1.events import LEDGER, RESUME
from sequence_hooks.v1.frontend.narrator import Narrator
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest


def awaiting(narrator: Narrator) -> list[str]:
    """The request ids of the sequences that wait for their callers."""
    return [branch.request_id for branch in narrator.awaiting()]


def resumption(
    narrator: Narrator, request_id: str, given: Given, max_model_len: int, vocab_size: int | None
) -> EngineCoreRequest:
    """What to send to the engine, so that a sequence goes on with ``given`` after its children's results.

    Raises:
        ValueError: no such sequence waits, or ``given`` is not what it could go on with.
    """
    waiting = {branch.request_id: branch for branch in narrator.awaiting()}
    if request_id not in waiting:
        raise nobody_waits(request_id, waiting)
    branch = waiting[request_id]
    num_context = len(branch.sequence.prompt_token_ids) + len(branch.sequence.output_token_ids)
    room = max_model_len - num_context
    token_ids: Any = encode_within(given, narrator.tokenizer, room) if isinstance(given, str) else given
    token_ids = checked_ids(token_ids, room, vocab_size)
    narrator.resumed(branch)
    return EngineCoreRequest(
        request_id=LEDGER,
        prompt_token_ids=[0],
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=1, extra_args={RESUME: [branch.sequence.engine_id, list(token_ids)]}),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
