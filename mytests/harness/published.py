# SPDX-License-Identifier: Apache-2.0
"""Published notations as a server's clients can play them: a grammar says what a request samples, and its children."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mytests.harness import notations
from mytests.harness.dialect import DIALECT
from mytests.harness.serving import guided
from mytests.harness.tagged import Notation


@dataclass(frozen=True)
class Play:
    """What is sampled in one notation, and what becomes of it."""

    notation: Notation
    sampled: str
    """By the request itself."""

    by_children: str
    """By each of its two children, before the tag."""

    tag: str
    """What ends them, if anything does."""

    output: str

    def fields(self) -> dict[str, Any]:
        """The fields of `SpecialKwargs`: the notation's name, and what children sample."""
        # Where a grammar has no stop tokens, one can only follow it.
        follows = not DIALECT.stops_within_grammars and len(self.notation.ids(self.tag)) == 1
        grammar = {"grammar": grammar_of(self.by_children + self.tag * (not follows))}
        of_children = {DIALECT.grammar_field: grammar, "logit_bias": self._bias}
        return {**self.notation.fields, "child_sampling_params": of_children}

    def request(self, text: str) -> dict[str, Any]:
        body = {"skip_special_tokens": False, "add_special_tokens": False, **guided(grammar_of(text))}
        return {"prompt": "so", "temperature": 0, "max_tokens": 400, "logit_bias": self._bias, "extra_body": body}

    @property
    def _bias(self) -> dict[str, float]:
        """Prefers tags to their first characters, which are allowed wherever they are."""
        return {str(token_id): 100.0 for token_id in self.notation.tokenizer.added_tokens_decoder}


def grammar_of(text: str) -> str:
    return f"root ::= {json.dumps(text)}"


def save_model(notation: Notation, folder: Path) -> str:
    """Save a small random model with the notation's tokenizer; returns the folder."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(notation.tokenizer), max_position_embeddings=1024, eos_token_id=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    notation.tokenizer.save_pretrained(folder)
    return str(folder)


_PLANS = "<{0}>1: a</{0}>\n<{0}>2: b</{0}>"
_APR_RESULT = "\n<No Solution in Sub Search {0} at level 1 at Node #0,{0}>"
_GUIDELINE = f"<guideline>\n{_PLANS.format('plan')}\n</guideline>"
_GOAL = f"<Goal>{_PLANS.format('Outline')}</Goal>"
_OUTLINES = f"<Outlines>\n{_PLANS.format('Outline')}\n</Outlines>"
_SEARCH = notations.APR_NODES + notations.APR_CALLS
_STEPS = f"{_GUIDELINE}\n<step>\n1:A</step>\n<step>\n2:A</step>\n<takeaway>\non"
_PATHS = f"{_GOAL}\n<Path>\n1:A</Path>\n<Path>\n2:A</Path>\n<Conclusion>\non"
_THREADS = f"{_OUTLINES}\n<Thread>\n1: A\n</Thread><Thread>\n2: A\n</Thread>\non"
_PARALLEL = "so <Parallel><Path>A</Path><Path>A</Path></Parallel>\n<Summary>on"
_PROMISES = '<promise topic="a"/> <promise topic="b"/><sync/>'
_ASYNC = f"{_PROMISES}<async>A</async><async>A</async> on"
_FORKS = "<FORK-1>a</FORK-1><FORK-2>b</FORK-2><JOIN-2>"
_ANSWERS = f"{_FORKS}A</JOIN-2> on<JOIN-1>A</JOIN-1>"
_FOUND = f"<Sub Searches>{_APR_RESULT.format(0)}{_APR_RESULT.format(1)}\n<End Sub Searches>\nso"

PLAYS: Mapping[str, Play] = {
    play.notation.name: play
    for play in (
        Play(notations.NPR, f"{_GUIDELINE}on", "A", "</step>", _STEPS),
        Play(notations.MULTIVERSE, f"{_GOAL}on", "A", "</Path>", _PATHS),
        Play(notations.THREADWEAVER, f"{_OUTLINES}on", " A\n", "</Thread>", _THREADS),
        Play(notations.PARALLEL_R1, "so <Parallel>on", "A", "</Path>", _PARALLEL),
        Play(notations.PASTA, f"{_PROMISES} on", "A", "</async>", _ASYNC),
        Play(notations.ASYNCTHINK, f"{_FORKS} on<JOIN-1>", "<RETURN>A", "</RETURN>", _ANSWERS),
        Play(notations.HPD, "a<FORK>b<FORK>", "A", "<|im_end|>", "a<CHILD>Ab<CHILD>A"),
        Play(notations.PADOC, "a[fork]b[fork]", "A", "", "aAbA"),
        Play(notations.APR, f"{_SEARCH}so", "No solution found.", "", f"{_SEARCH}{_FOUND}"),
    )
}
