# SPDX-License-Identifier: Apache-2.0
"""The language model on an engine: the fork's, or that of a current vLLM with the plug-in.

The base model comes from `make language-model`; what it was taught is an adapter, which `merge_language.py` merges into
it.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Before forkjoin_engine gives its tiny model one thread.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

from forkjoin_engine import open_engine
from language_task import HOOKS, chat

from sequence_hooks import SpecialKwargs
from vllm import LLM, RequestOutput, SamplingParams

MAX_TOKENS = 400
"""Of an answer that is written in sequence; each sequence of a tree samples fewer."""


def open_language_engine(model: Path, *, hooks: Mapping[str, Any] | None = HOOKS, **engine_args: Any) -> LLM:
    """An engine for the model in the folder ``model``, with the hooks that it was taught, or with none."""
    special_kwargs = None if hooks is None else SpecialKwargs(**hooks)
    return open_engine(special_kwargs, **{"model": str(model), "max_model_len": 1536, "max_num_seqs": 64} | engine_args)


def ask(engine: LLM, questions: Sequence[str], **parameters: Any) -> list[RequestOutput]:
    """What the model answers to each question, at temperature 0, with its tags."""
    tokenizer = engine.get_tokenizer()
    prompts = [{"prompt_token_ids": encoded(chat(question, tokenizer), tokenizer)} for question in questions]
    defaults = {"temperature": 0.0, "max_tokens": MAX_TOKENS, "skip_special_tokens": False}
    outputs: list[RequestOutput] = engine.generate(prompts, SamplingParams(**defaults | parameters), use_tqdm=False)
    return outputs


def encoded(text: str, tokenizer: Any) -> list[int]:
    """The token ids of a text that has its special tokens in it."""
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return token_ids
