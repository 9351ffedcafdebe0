# SPDX-License-Identifier: Apache-2.0
"""One tree as a client without hooks decodes it: a request up to the fork, one per child, one after their results."""

from benchmarks.forkjoin.engine import Observed
from benchmarks.forkjoin.plans import Script, Tokens


class ClientTree:
    """Sends its next requests as soon as it has the outputs that they need."""

    def __init__(self, engine: Observed, name: str, tokens: Tokens) -> None:
        self._engine, self._name, self._tokens = engine, name, tokens
        self._results: dict[str, tuple[int, ...]] = {}
        self._context: tuple[int, ...] = ()

    def begin(self) -> None:
        """Request everything up to the fork."""
        tokens = self._tokens
        self._engine.add(f"{self._name}/lead", tokens.prompt, Script(tokens.lead), max_tokens=len(tokens.lead))

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
            self._engine.add(f"{self._name}/{index}", (*context, mark), Script(child))

    def _join(self) -> None:
        self._engine.end_round()
        merged = [token for index in range(len(self._results)) for token in self._results[str(index)][:-1]]
        self._engine.add(f"{self._name}/tail", (*self._context, *merged), Script(self._tokens.tail))
