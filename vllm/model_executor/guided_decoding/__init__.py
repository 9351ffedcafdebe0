# SPDX-License-Identifier: Apache-2.0
"""Upstream's logits processors for guided decoding; one is made only from a grammar that was tried before.

Both engines, and the front end of an engine in its own process, make them with the two functions here.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm._overlay import extend_package, fall_back_to

extend_package(__name__, __path__)

from sequence_hooks.text.messages import describe_error  # noqa: E402
from vllm._upstream.model_executor import guided_decoding as upstream  # noqa: E402
from vllm.logits_process import LogitsProcessor  # noqa: E402
from vllm.model_executor.guided_decoding.grammars import shown_grammar, trials  # noqa: E402
from vllm.sampling_params import GuidedDecodingParams  # noqa: E402
from vllm.transformers_utils.tokenizer import AnyTokenizer  # noqa: E402

_THREADS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="grammars")


def get_local_guided_decoding_logits_processor(
    guided_params: GuidedDecodingParams,
    tokenizer: AnyTokenizer,
    model_config: Any,
    reasoning_backend: str | None = None,
) -> LogitsProcessor:
    """Upstream's processor, for a grammar that the backend can compile and that a token of the model can begin.

    Raises:
        ValueError: the grammar is invalid or too large, or needs characters that no token has.
    """
    trials.check(guided_params, tokenizer, model_config)
    try:
        return make_logits_processor(guided_params, tokenizer, model_config, reasoning_backend)
    except Exception as error:
        raise ValueError(shown_grammar(guided_params, describe_error(error))) from error


async def get_guided_decoding_logits_processor(
    guided_params: GuidedDecodingParams,
    tokenizer: AnyTokenizer,
    model_config: Any,
    reasoning_backend: str | None = None,
) -> LogitsProcessor:
    """`get_local_guided_decoding_logits_processor` in a thread, so that other requests continue meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(
        _THREADS,
        get_local_guided_decoding_logits_processor,
        guided_params,
        tokenizer,
        model_config,
        reasoning_backend,
    )


def make_logits_processor(
    guided_params: GuidedDecodingParams, tokenizer: AnyTokenizer, model_config: Any, reasoning_backend: str | None
) -> LogitsProcessor:
    """Upstream's processor, which may crash in its first step.

    Raises:
        Exception: whatever a backend raises.
        ValueError: upstream makes no processor at all.
    """
    processor = upstream.get_local_guided_decoding_logits_processor(
        guided_params, tokenizer, model_config, reasoning_backend
    )
    if processor is None:
        raise ValueError("it is empty")
    return processor


__getattr__ = fall_back_to("vllm._upstream.model_executor.guided_decoding")
