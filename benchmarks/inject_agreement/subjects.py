# SPDX-License-Identifier: Apache-2.0
"""The models that are compared, one trained for fork and join and one not trained at all, and their answers."""

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from string import ascii_lowercase
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import torch
from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import MAX_LETTERS, MIN_LETTERS, MODES, Mode, is_correct, is_held_out, make_prompt
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

from vllm import LLM, CompletionOutput, SamplingParams
from vllm.config import SpecialKwargs

NUM_COMPARED = 16
"""Tokens after a join."""

EOS, PROMISE, SYNC = 2, 3, 4
"""Token ids of the random model."""

Fields = Mapping[str, Any]
"""Fields of `SpecialKwargs`."""


@dataclass(frozen=True)
class Continuation:
    """What one request sampled after its join."""

    context: tuple[int, ...]
    """Its output up to the join's end, merged tokens included."""

    tokens: list[int]
    logprobs: dict[int, float]
    """The logprobs of all candidates for the first of ``tokens``."""

    @classmethod
    def of(cls, output: CompletionOutput) -> "Continuation":
        """The continuation after the first join."""
        end = output.joins[0].position + output.joins[0].num_merged
        first = {token: entry.logprob for token, entry in output.logprobs[end].items()}
        return cls(tuple(output.token_ids[:end]), list(output.token_ids[end : end + NUM_COMPARED]), first)

    def agreement(self, other: "Continuation") -> float:
        """The share of its tokens that ``other`` has at the same positions."""
        return sum(ours == theirs for ours, theirs in zip(self.tokens, other.tokens, strict=False)) / len(self.tokens)

    def divergence(self, other: "Continuation") -> float:
        """The Kullback-Leibler divergence of its first distribution from that of ``other``, in nats."""
        likely = ((token, logprob) for token, logprob in self.logprobs.items() if logprob > -math.inf)
        return sum(math.exp(logprob) * (logprob - other.logprobs[token]) for token, logprob in likely)


@dataclass(frozen=True)
class Answers:
    """What a model answered for one number of children, with one way to join."""

    continuations: list[Continuation]
    exact_match: Mapping[Mode, float] = field(default_factory=dict)
    """The share of outputs that are right, by the task's mode."""


class Subject(Protocol):
    """A model, and prompts for it."""

    def answers(self, num_children: int, fields: Fields) -> Answers:
        """The answers, all greedy, so that they differ only by the join."""


class ForkJoin:
    """The trained model and its task."""

    VOCABULARY = 45

    def __init__(self, num_prompts: int, seed: int) -> None:
        self._num_prompts, self._seed = num_prompts, seed

    def answers(self, num_children: int, fields: Fields) -> Answers:
        """Continuations are of the mode "sync", which joins all children at once."""
        outputs = {mode: self._generate(mode, num_children, fields) for mode in MODES}
        exact_match = {mode: fmean(self._are_right(mode, num_children, outputs[mode])) for mode in MODES}
        return Answers([Continuation.of(output) for output in outputs["sync"]], exact_match)

    def _generate(self, mode: Mode, num_children: int, fields: Fields) -> list[CompletionOutput]:
        llm = open_engine(hooks_for(mode, **fields), max_logprobs=self.VOCABULARY)
        params = GREEDY.clone()
        params.logprobs = self.VOCABULARY
        outputs = llm.generate(self._prompts(mode, num_children), params, use_tqdm=False)
        return [output.outputs[0] for output in outputs]

    def _are_right(self, mode: Mode, num_children: int, outputs: Sequence[CompletionOutput]) -> Iterator[bool]:
        prompts = self._prompts(mode, num_children)
        return (is_correct(prompt, output.text) for prompt, output in zip(prompts, outputs, strict=True))

    def _prompts(self, mode: Mode, num_children: int) -> list[str]:
        draw = random.Random(f"{mode} {num_children} {self._seed}")
        words = ([_held_out_word(draw) for _ in range(num_children)] for _ in range(self._num_prompts))
        return [make_prompt(each, mode) for each in words]


def _held_out_word(draw: random.Random) -> str:
    while True:
        word = "".join(draw.choices(ascii_lowercase, k=draw.randint(MIN_LETTERS, MAX_LETTERS)))
        if is_held_out(word):
            return word


class Untrained:
    """A random Llama of ten million parameters. Hook tokens and ends are forced; it samples all others itself."""

    VOCABULARY, PROMPT_LENGTH, RESULT_LENGTH = 256, 48, 16

    def __init__(self, folder: Path, num_prompts: int, seed: int) -> None:
        self._folder, self._num_prompts, self._seed = folder, num_prompts, seed
        set_seed(seed)
        config = LlamaConfig(
            vocab_size=self.VOCABULARY,
            hidden_size=384,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=2,
            initializer_range=0.1,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        words = WordLevel({f"w{token}": token for token in range(self.VOCABULARY)}, unk_token="w0")
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0")
        tokenizer.save_pretrained(folder)

    def answers(self, num_children: int, fields: Fields) -> Answers:
        """Each promise follows a token that the parent samples itself."""
        hooks = SpecialKwargs(
            promise_token_id=PROMISE,
            sync_token_id=SYNC,
            block_on="sync",
            merge_separator="",
            child_sampling_params={"logprobs": None},
            **fields,
        )
        llm = LLM(
            str(self._folder),
            special_kwargs=hooks,
            dtype="float32",
            enforce_eager=True,
            max_model_len=512,
            max_logprobs=self.VOCABULARY,
            disable_log_stats=True,
        )
        params = SamplingParams(
            temperature=0.0,
            max_tokens=2 * num_children + 1 + NUM_COMPARED,
            logprobs=self.VOCABULARY,
            logits_processors=[partial(self._force, num_children)],
        )
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in self._prompts()], params, use_tqdm=False)
        return Answers([Continuation.of(output.outputs[0]) for output in outputs])

    def _prompts(self) -> list[list[int]]:
        draw = random.Random(self._seed)
        return [draw.choices(range(5, self.VOCABULARY), k=self.PROMPT_LENGTH) for _ in range(self._num_prompts)]

    def _force(
        self, num_children: int, prompt: Sequence[int], sampled: Sequence[int], logits: torch.Tensor
    ) -> torch.Tensor:
        steps: tuple[int | None, ...] = (None,) * self.RESULT_LENGTH + (EOS,)
        if len(prompt) == self.PROMPT_LENGTH:
            steps = (None, PROMISE) * num_children + (SYNC,)
        forced = steps[len(sampled)] if len(sampled) < len(steps) else None
        if forced is None:
            logits[[EOS, PROMISE, SYNC]] = -math.inf
        else:
            logits.fill_(-math.inf)
            logits[forced] = 0.0
        return logits
