# SPDX-License-Identifier: Apache-2.0
"""Answers by outline on V0: what they need of the engine, and where they are told."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from sequence_hooks.serving.outlines.answer import Engine, OutlineAnswer
from sequence_hooks.serving.outlines.reader import Texts
from sequence_hooks.serving.outlines.requests import has_outlines, regexes
from sequence_hooks.serving.outlines.tape import Detokenizer
from vllm.engine.hooked import special_kwargs_of
from vllm.model_executor.guided_decoding import get_local_guided_decoding_logits_processor
from vllm.model_executor.guided_decoding.xgrammar_decoding import GrammarCompilerCache, XGrammarLogitsProcessor
from vllm.sampling_params import GuidedDecodingParams
from vllm.sequence import Logprob
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer


def compile_grammars(engine: Any) -> None:
    """Compile the grammars of a server's outlines, which xgrammar keeps, so that no client waits for one.

    One that cannot be compiled is refused to whoever asks for it.
    """
    special_kwargs = special_kwargs_of(engine)
    if special_kwargs is None or not has_outlines(special_kwargs):
        return
    decoding, tokenizer = engine.decoding_config, engine.get_tokenizer()
    for regex in regexes(special_kwargs):
        params = GuidedDecodingParams(regex=regex, backend=decoding.backend)
        made = None
        with suppress(ValueError):
            made = get_local_guided_decoding_logits_processor(
                params, tokenizer, engine.model_config, decoding.reasoning_backend
            )
        if isinstance(made, XGrammarLogitsProcessor):
            GrammarCompilerCache.get_compiler(made.config).compile_regex(regex)


def told(client: Any, generate: Callable[..., Any], params: Any, request_id: str) -> AsyncIterator[Any]:
    """The outputs of a request as its reader gets them: an answer by outline, if its parameters ask for one.

    Args:
        generate: Called with parameters and the request's id, which of an answer by outline are others: if the model
            writes no outline, the same request comes again, and the engine may not have heard of the end of this one.
    """
    answer = OutlineAnswer.detach(params)
    if answer is None:
        return generate(params, request_id)

    async def known() -> Engine:
        return _engine_of(await client.get_tokenizer())

    return answer.read(generate(answer.params, f"{request_id}-outline"), known)


def _engine_of(tokenizer: Any) -> Engine:
    def detokenizer(prompt_token_ids: list[int], params: Any) -> Detokenizer:
        # V0 has none for tokens that it has not sampled; that of V1 takes any.
        nothing: list[Any] = [None] * 3
        of_request = "answer", prompt_token_ids, *nothing, params, None, None, 0.0, None, None, None
        return IncrementalDetokenizer.from_new_request(tokenizer, EngineCoreRequest(*of_request))

    return Engine(Texts(tokenizer, Logprob), detokenizer)
