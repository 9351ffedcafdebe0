# SPDX-License-Identifier: Apache-2.0
"""One tree as a client without hooks decodes it: a request up to the fork, one per child, one after their results."""

from collections.abc import Sequence

from benchmarks.forkjoin.engine import Observed
from benchmarks.forkjoin.plans import Script, Tokens
from vllm import SamplingParams

LONGEST = 16000
"""In tokens; a scripted sequence ends earlier, with its EOS."""


class ClientTree:
    """Sends its next requests as soon as it has the outputs that they need."""

    def __init__(self, engine: Observed, name: str, tokens: Tokens) -> None:
        self._engine, self._name, self._tokens = engine, name, tokens
        self._results: dict[str, tuple[int, ...]] = {}
        self._context: tuple[int, ...] = ()

    def begin(self) -> None:
        """Request everything up to the fork."""
        tokens = self._tokens
        self._engine.add(f"{self._name}/lead", tokens.prompt, scripted(tokens.lead, max_tokens=len(tokens.lead)))

    def take(self, request_id: str, output: tuple[int, ...]) -> bool:
        """Continue with an output; True at the tree's end."""
        _, _, part = request_id.partition("/")
        if part == "lead":
            self._fork((*self._tokens.prompt, *output))
        elif part != "tail":
            self._results[part] = output
            if len(self._results) == len(self._tokens.children):
                self._join()
        return part == "tail"

    def _fork(self, context: tuple[int, ...]) -> None:
        self._engine.end_round()
        self._context = context
        for index, (mark, child) in enumerate(zip(self._tokens.marks, self._tokens.children, strict=True)):
            self._engine.add(f"{self._name}/{index}", (*context, mark), scripted(child))

    def _join(self) -> None:
        self._engine.end_round()
        merged = [token for index in range(len(self._results)) for token in self._results[str(index)][:-1]]
        self._engine.add(f"{self._name}/tail", (*self._context, *merged), scripted(self._tokens.tail))


def scripted(
    output: Sequence[int], children: Sequence[Sequence[int]] = (), max_tokens: int = LONGEST
) -> SamplingParams:
    """Parameters of a request that samples ``output``, and whose children each sample their part of ``children``."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, logits_processors=[Script(output, children)])
