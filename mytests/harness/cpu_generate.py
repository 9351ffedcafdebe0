# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens of a tiny random Llama, with logprobs, in this process or, for V1, in a subprocess."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from benchmarks.check_upstream.workload import VOCABULARY, save_model
from mytests.harness.ties import NUM_LOGPROBS, is_same, logprobs_of
from vllm import LLM, SamplingParams

PROMPT_LENS = [5, 40, 70, 100]


def save_tiny_llama(folder: Path) -> None:
    """The model of `make check-upstream`, with a tokenizer, which V1 requires."""
    save_model(folder)
    words = WordLevel({f"w{token}": token for token in range(VOCABULARY)}, unk_token="w0")
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0")
    tokenizer.save_pretrained(folder)


class Generated(NamedTuple):
    """One output, with the logprobs of the most likely tokens at each place."""

    token_ids: list[int]
    logprobs: list[list[tuple[int, float]]]

    def is_same(self, expected: "Generated") -> bool:
        """Compare with a reference; see `mytests.harness.ties.is_same`."""
        return is_same(self.token_ids, expected.token_ids, list(map(dict, expected.logprobs)))


def generate(folder: Path, **engine_args: Any) -> list[Generated]:
    """Outputs of the same prompts, generated twice: the second time, prefixes may be cached."""
    llm = LLM(
        str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=8,
        **engine_args,
    )
    params = SamplingParams(max_tokens=12, temperature=0, detokenize=False, ignore_eos=True, logprobs=NUM_LOGPROBS)
    generator = torch.Generator().manual_seed(1)
    prompts = [
        {"prompt_token_ids": torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()} for n in PROMPT_LENS
    ]
    outputs = [llm.generate(prompts, params, use_tqdm=False) for _ in range(2)]
    completions = [output.outputs[0] for round_ in outputs for output in round_]
    return [
        Generated(list(each.token_ids), [list(entry.items()) for entry in logprobs_of(each)]) for each in completions
    ]


def generate_in_subprocess(folder: Path, environ: dict[str, str]) -> list[Generated]:
    """`generate` in a process with ``environ``, with prompts in chunks of 32 tokens."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(folder)],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Generated(*each) for each in json.loads(done.stdout.splitlines()[-1])]


if __name__ == "__main__":
    print(json.dumps(generate(Path(sys.argv[1]), max_num_batched_tokens=32)))
