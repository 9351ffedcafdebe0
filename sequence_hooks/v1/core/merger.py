# SPDX-License-Identifier: Apache-2.0
"""Carries a join out on a request of V1: what the rules merge becomes part of its context."""

from collections.abc import Sequence
from typing import Any

from sequence_hooks.tree.assembly import Assembler, Assembly
from sequence_hooks.tree.log import HookLog
from sequence_hooks.tree.resume import checked_ids
from sequence_hooks.tree.rules import Merge, join
from sequence_hooks.v1.core.sequence import V1Branch


class Merger:
    """Appends the results of children to their parent. It changes the request, and not the tree.

    Args:
        tokenizer: Encodes separators and texts of join functions; None if the engine has none.
        max_model_len: The most tokens that a context may have.
    """

    def __init__(self, tokenizer: Any, max_model_len: int, vocab_size: int | None, log: HookLog) -> None:
        self._tokenizer = tokenizer
        self._model_len = max_model_len
        self._vocab_size = vocab_size
        self._log = log

    def room(self, branch: V1Branch) -> int:
        """How many more tokens the context of a branch may have."""
        return self._model_len - len(branch.sequence.request.all_token_ids)

    def checked(self, branch: V1Branch, token_ids: Sequence[int]) -> tuple[int, ...]:
        """The ``token_ids`` that a caller gives to ``branch``; raises a `ValueError` if it has no room for them."""
        return checked_ids(token_ids, self.room(branch), self._vocab_size)

    def merge(self, branch: V1Branch) -> Merge:
        """Append the results of the unjoined children, and what a caller gave; return what was appended."""
        request = branch.sequence.request
        merge = join(branch, self._model_len, self._encode, self._vocab_size)
        self._log.joined(branch.request_id, merge)
        for span in merge.spans:
            request.append_output_token_ids(list(span.token_ids))
            branch.sequence.merged(span.token_ids)
        return merge

    def assemble(self, branch: V1Branch) -> Assembly:
        """The output of a request whose tree has ended, with the results of detached children."""
        assembly = Assembler(self._encode, self._vocab_size).assemble(branch)
        self._log.assembled(branch.request_id, assembly.error)
        return assembly

    def _encode(self, text: str) -> Sequence[int]:
        token_ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return token_ids
