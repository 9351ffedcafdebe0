# SPDX-License-Identifier: Apache-2.0
"""Every field of upstream's requests, in a tree on a real engine. A release with a new one fails until it is tried."""

from collections.abc import Iterator
from typing import Any

import pytest

from mytests.harness.v1.models import opened  # isort: split

from forkjoin_engine import hooks_for
from forkjoin_task import held_out_prompts

from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest

pytestmark = [pytest.mark.model, pytest.mark.every_release]

GREEDY_FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "skip_special_tokens": False}
PROMPT = held_out_prompts(1, 9, "sync")[0]
TRIED: dict[str, Any] = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "watermarking": True,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["apple"],
    "stop_token_ids": [9],
    "ignore_eos": True,
    "max_tokens": 12,
    "min_tokens": 3,
    "logprobs": 2,
    "prompt_logprobs": 2,
    "logprob_token_ids": [5, 6, 7],
    "flat_logprobs": True,
    "detokenize": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "output_kind": RequestOutputKind.FINAL_ONLY,
    "stream_interval": 3,
    "skip_clone": True,
    "structured_outputs": StructuredOutputsParams(regex="[a-z0-9 ]+"),
    "logit_bias": {5: 1.0},
    "allowed_token_ids": list(range(40)),
    "extra_args": {"of": "others"},
    "bad_words": ["stone river"],
    "skip_reading_prefix_cache": True,
    "repetition_detection": RepetitionDetectionParams(max_pattern_size=2, min_count=3),
    "routed_experts_prompt_start": 2,
}
REFUSED_HERE = {"prompt_logprob_token_ids", "prompt_logprob_start", "thinking_token_budget", "trace_decode_token_ids"}
"""Upstream refuses them on this engine: they need its second model runner, or options."""

OF_A_REQUEST = {
    *("request_id", "external_req_id", "client_index", "current_wave", "data_parallel_rank", "arrival_time"),
    *("prompt_token_ids", "sampling_params", "pooling_params", "lora_request", "cache_salt", "priority"),
    *("trace_headers", "session_id", "kv_hints", "abort_immediately", "reasoning_ended", "reasoning_parser_kwargs"),
    *("mm_features", "prompt_embeds", "prompt_is_token_ids", "resumable"),
}
"""Those in the last line are refused with hooks; `make_like` passes the others to children, or none can have them."""


@pytest.fixture(scope="module", params=[None, {"min_p": 0.0}], ids=["inherited", "overridden"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An engine whose children inherit all fields, or all but one."""
    with opened(hooks_for("sync", child_sampling_params=request.param)) as engine:
        yield engine


def test_no_field_is_unknown() -> None:
    """Neither of sampling parameters nor of requests; each release has some of them."""
    of_sampling = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    assert of_sampling <= {*TRIED, *REFUSED_HERE, "output_text_buffer_length"}
    assert set(EngineCoreRequest.__struct_fields__) <= OF_A_REQUEST


@pytest.mark.parametrize("name", TRIED)
def test_a_tree_has_it(engine: Any, name: str) -> None:
    """Its root has joined what its children have sampled, and each of its tokens has what was asked for."""
    if name not in SamplingParams.__struct_fields__:
        pytest.skip(f"this release has no {name}")
    params = SamplingParams(**{**GREEDY_FIELDS, **({"temperature": 0.5} if name == "n" else {}), name: TRIED[name]})
    (output,) = engine.generate([PROMPT], params, use_tqdm=False)
    assert len(output.outputs) == params.n
    for completion in output.outputs:
        assert completion.finish_reason in ("stop", "length", "repetition")
        # A grammar allows no special token.
        if name == "structured_outputs":
            assert completion.children == completion.segments == ()
        else:
            assert completion.children and not any(child.failed for child in completion.children)
            assert completion.segments[-1].end == len(completion.token_ids)
        if params.num_logprobs is not None:
            entries = list(completion.logprobs)
            assert all(token_id in entry for token_id, entry in zip(completion.token_ids, entries, strict=True))
    assert not engine.llm_engine.has_unfinished_requests()
