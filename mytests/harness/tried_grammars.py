# SPDX-License-Identifier: Apache-2.0
"""Tries of grammars in front of made-up processors and answers."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forkjoin_engine import MODEL_FOLDER

from vllm.model_executor.guided_decoding import upstream
from vllm.model_executor.guided_decoding.grammars import GrammarTrials
from vllm.sampling_params import GuidedDecodingParams

MODEL: Any = SimpleNamespace(model=str(MODEL_FOLDER), hf_text_config=SimpleNamespace(vocab_size=45))
FORK_JOIN = "fork-join tokenizer"


def regex(text: str, backend: str = "xgrammar") -> GuidedDecodingParams:
    return GuidedDecodingParams(regex=text, backend=backend)


def allowing(*token_ids: int) -> Any:
    """A processor that allows only these tokens."""

    def process(sampled: list[int], logits: torch.Tensor) -> torch.Tensor:
        masked = torch.full_like(logits, -torch.inf)
        masked[list(token_ids)] = 0
        return masked

    return process


def made_as(monkeypatch: pytest.MonkeyPatch, processor: Any) -> None:
    """Make upstream return ``processor`` for any grammar, or raise it."""

    def make(*args: Any) -> Any:
        if isinstance(processor, Exception):
            raise processor
        return processor

    monkeypatch.setattr(upstream, "get_local_guided_decoding_logits_processor", make)


class Answering(GrammarTrials):
    """Trials with a list of answers in place of a process."""

    def __init__(self, *answers: str | OSError) -> None:
        super().__init__()
        self.answers = list(answers)

    def _try(self, asked: bytes, tokenizer: Any, model_config: Any) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer
