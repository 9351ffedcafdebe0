# SPDX-License-Identifier: Apache-2.0
"""What answers by outline need of upstream's front end: its tokenizer, detokenizers and logprobs."""

from typing import Any, cast

from sequence_hooks.serving.outlines.answer import Engine
from sequence_hooks.serving.outlines.reader import Texts
from sequence_hooks.serving.outlines.tape import Detokenizer
from sequence_hooks.v1.wire import bare_request
from vllm.logprobs import Logprob
from vllm.v1.engine.detokenizer import IncrementalDetokenizer


def engine_of(tokenizer: Any) -> Engine:
    """What is known of an engine whose front end has this tokenizer."""

    def detokenizer(prompt_token_ids: list[int], params: Any) -> Detokenizer:
        request = bare_request("answer", prompt_token_ids, params)
        return cast(Detokenizer, IncrementalDetokenizer.from_new_request(tokenizer, request))

    return Engine(Texts(tokenizer, Logprob), detokenizer)
