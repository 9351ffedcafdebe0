# SPDX-License-Identifier: Apache-2.0
"""Writes training data for the language model, by self-distillation: all texts are the base model's own.

For each question of `forkjoin-language/questions/train.txt` the base model writes an outline, held to its form by a
grammar, then each point's expansion in a request of its own, and at last a closing sentence after all of them. What is
not well-formed is left out. The same arguments give the same data on the same kind of processor.

Usage: `python examples/language_data.py MODEL_FOLDER answers.jsonl`
"""

import argparse
import dataclasses
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from language_engine import encoded
from language_task import BEFORE_CLOSING, SEPARATOR, Answer, chat, has_bfloat16, outline, points_of, questions
from tqdm import tqdm

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

AT_ONCE = 64
"""Questions."""

OUTLINED, FEWEST_POINTS, MOST_POINTS = 6, 4, 5
"""Points of an outline, and how many of them an answer has; not all are worth learning."""

SHORTEST, LONGEST = 20, 100
"""Tokens of an expansion that is taken."""

Expanded = tuple[str, str]
"""A point and its expansion."""

_POINT = r"\*\*[A-Z][a-z]+('[a-z]{1,2})?( [A-Za-z]+){0,4}\*\*"
_LIST = StructuredOutputsParams(regex=r"\n".join(rf"{number}\. {_POINT}" for number in range(1, OUTLINED + 1)))
_TITLE = re.compile(r"^(?:\d+\.\s*)?(?:\*\*[^*\n]+\*\*\s*[:.-]?\s*|[A-Z][\w ,'-]{2,40}:\s+)")
_NAMES_ITSELF = re.compile(r"\b(?:point \d|AI|SmolLM|language model|As an?\b.{0,20}assistant)", re.IGNORECASE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="the link that `make language-model` prints")
    parser.add_argument("output", type=Path, help="a file of JSON lines, which is overwritten")
    parser.add_argument("--outlines", type=int, default=1, help="of each question")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # Upstream's engine cannot sample with a seed after a prefill in chunks on a CPU: each batch is one chunk.
    llm = LLM(
        arguments.model,
        dtype="bfloat16" if has_bfloat16() else "float32",
        max_model_len=1024,
        max_num_seqs=AT_ONCE,
        max_num_batched_tokens=65536,
        enforce_eager=True,
    )
    asked = [question for question in questions("train") for _ in range(arguments.outlines)]
    with arguments.output.open("w", encoding="utf-8") as file:
        for start in tqdm(range(0, len(asked), AT_ONCE), unit="batch"):
            for answer in Distiller(llm, arguments.seed + start).answers(asked[start : start + AT_ONCE]):
                print(json.dumps(dataclasses.asdict(answer)), file=file, flush=True)


class Distiller:
    """Answers in points, from a model that was not trained for them."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self._llm = llm
        self._tokenizer: Any = llm.get_tokenizer()
        self._rng = random.Random(seed)

    def answers(self, asked: Sequence[str]) -> Iterator[Answer]:
        """At most one for each question: where four or five points are well-formed, and a closing sentence."""
        outlines = [_different(text) for text in self._outlines(asked)]
        expanded = [self._chosen(pairs) for pairs in self._expansions(asked, outlines)]
        parts = [(question, pairs) for question, pairs in zip(asked, expanded, strict=True) if pairs]
        for (question, pairs), closing in zip(parts, self._closings(parts), strict=True):
            if closing:
                points, texts = zip(*pairs, strict=True)
                yield Answer(question=question, points=points, expansions=texts, closing=closing)

    def _outlines(self, asked: Sequence[str]) -> list[str]:
        wish = "Answer with a list of six short points, and no explanations."
        prompts = [chat(f"{question}\n{wish}", self._tokenizer) for question in asked]
        return self._sampled(prompts, max_tokens=120, structured_outputs=_LIST)

    def _expansions(self, asked: Sequence[str], outlines: Sequence[Sequence[str]]) -> list[list[Expanded]]:
        prompts = [
            chat(f"{question} Write three sentences about this point: {point}.", self._tokenizer)
            for question, points in zip(asked, outlines, strict=True)
            for point in points
        ]
        texts = map(self._paragraph, self._sampled(prompts, max_tokens=LONGEST, stop=["\n"]))
        return [[(point, next(texts)) for point in points] for points in outlines]

    def _chosen(self, pairs: Sequence[Expanded]) -> list[Expanded]:
        """Four or five of the points whose expansions are worth learning; none if there are fewer."""
        by_start = {" ".join(text.split()[:6]): (point, text) for point, text in reversed(pairs) if text}
        fine = [pair for pair in pairs if pair in by_start.values()]
        return fine[: self._rng.randint(FEWEST_POINTS, MOST_POINTS)] if len(fine) >= FEWEST_POINTS else []

    def _paragraph(self, text: str) -> str:
        """Whole sentences, without a title; empty if they are not worth learning."""
        text = _TITLE.sub("", text.strip()).strip()
        text = text[: text.rfind(".") + 1]
        num_tokens = len(encoded(text, self._tokenizer))
        is_fine = num_tokens >= SHORTEST and text[0].isupper() and "*" not in text and not _NAMES_ITSELF.search(text)
        return text if is_fine else ""

    def _closings(self, parts: Sequence[tuple[str, Sequence[Expanded]]]) -> list[str]:
        prompts = []
        for question, pairs in parts:
            points, texts = zip(*pairs, strict=True)
            answer = SEPARATOR.join((outline(points), *texts))
            prompts.append(chat(question, self._tokenizer) + answer + BEFORE_CLOSING)
        closings = self._sampled(prompts, max_tokens=60, stop=[".", "\n"], include_stop_str_in_output=True)
        return [f"In short,{text}" if text.endswith(".") and "*" not in text else "" for text in closings]

    def _sampled(self, prompts: Sequence[str], **parameters: Any) -> list[str]:
        token_ids = [encoded(prompt, self._tokenizer) for prompt in prompts]
        params = [
            SamplingParams(
                temperature=0.4, top_p=0.9, repetition_penalty=1.05, seed=self._rng.randrange(2**31), **parameters
            )
            for _ in prompts
        ]
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in token_ids], params, use_tqdm=False)
        return [output.outputs[0].text for output in outputs]


def _different(text: str) -> list[str]:
    """The points of an outline, without those that are like an earlier one."""
    try:
        points = points_of(text)
    except ValueError:
        return []
    different: list[str] = []
    for point in points:
        if not any(_alike(point, other) for other in different):
            different.append(point)
    return different


def _alike(one: str, other: str) -> bool:
    """Whether two points share half of their words."""
    words, others = (set(point.lower().split()) for point in (one, other))
    return 2 * len(words & others) >= min(len(words), len(others))


if __name__ == "__main__":
    main()
