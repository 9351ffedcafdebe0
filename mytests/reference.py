# SPDX-License-Identifier: Apache-2.0
"""What a finished tree must hold: a reference that knows nothing of scheduling, for random walks of any engine."""

from typing import Any

from mytests.characters import EOS, SYNC, ids
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.tree.branch import Branch

SEPARATOR = ids("\n")


class Reference:
    """What finished sequences must hold, from the tokens fed to them and the rules of merging alone."""

    def __init__(self, hooks: SpecialKwargs, max_len: int) -> None:
        self.hooks = hooks
        self.max_len = max_len
        self.fed: dict[str, list[int]] = {}
        self.given: dict[str, list[list[int]]] = {}
        """What each sequence was resumed with."""

    def feed(self, request_id: str, token: int) -> int:
        """Note that a sequence samples ``token``, and return it."""
        self.fed.setdefault(request_id, []).append(token)
        return token

    def output(
        self, request_id: str, num_prompt: int, branch: Branch[Any] | None, with_ending: bool = True
    ) -> list[int]:
        """The tokens of a finished sequence, with or without the EOS that ended it.

        Args:
            branch: Its own; None if no hook has touched it.
        """
        fed, given = self.fed.get(request_id, []), iter(self.given.get(request_id, []))
        out: list[int] = []
        pending: list[Branch[Any]] = []
        children = [] if branch is None else list(branch.children)
        for position, token in enumerate(fed):
            out.append(token)
            while children and children[0].spec is not None and children[0].spec.position == len(out):
                child = children.pop(0)
                # What it comes to is in no context.
                pending += [] if child.is_detached else [child]
            end = len(out)
            is_last = position == len(fed) - 1
            if is_last or token == SYNC or self.hooks.block_on == "promise":
                merged = self._merged(pending) + (next(given, []) if token == SYNC else [])
                out += merged[: self.max_len - num_prompt - len(out)]
                pending = []
        if fed and fed[-1] == EOS and not with_ending:
            del out[end - 1]
        assert not children and not pending
        return out

    def _merged(self, children: list[Branch[Any]]) -> list[int]:
        if self.hooks.child_merge_strategy == "none":
            return []
        results = [self._result(child) for child in children]
        return [token for result in results for token in [*SEPARATOR, *result]][len(SEPARATOR) :]

    def _result(self, child: Branch[Any]) -> list[int]:
        assert child.spec is not None
        return [] if child.has_failed else self.output(child.request_id, child.spec.num_prompt_tokens, child, False)
