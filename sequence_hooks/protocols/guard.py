# SPDX-License-Identifier: Apache-2.0
"""A guard: a text that a model is not to sample is put right in its context, and it goes on after the right one::

    sampled       a  b  <  Wrong  >\n
    output        a  b  <  Wrong  >\n  b  <  Right  >      what was replaced stays, for the caller to see
    context       a                    b  <  Right  >      the token ``b<`` begins with text of its own, which stays

Models learn a text from data in which both a sequence and its surroundings write it. Where only the surroundings are to
do so, clients stop at the text and write another one.
"""

from collections.abc import Sequence

from sequence_hooks.handlers import Actions, Merged, TokenEvent
from sequence_hooks.protocols.tags import start_of
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of


class Guard:
    """A handler for the text ``wrong``, which is replaced by ``right`` wherever a sequence samples it.

    What the token that completes it has after it is replaced, too.
    """

    def __init__(self, tokenizer: Tokenizer, wrong: str, right: str) -> None:
        self._tokenizer = tokenizer
        self._wrong, self._right = wrong, right

    def on_token(self, event: TokenEvent) -> Actions:
        sampled = [*event.output_token_ids, event.token_id]
        start = start_of(self._wrong, sampled, self._tokenizer)
        if start is None:
            raise ValueError(f"the guard of {self._wrong!r} was asked about a text without it; give it to that hook")
        return Actions(
            block=True,
            replace_from=start.index,
            insert_token_ids=prefix_ids_of(start.text_before + self._right, self._tokenizer),
        )

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Nothing: it spawns none."""
        return ()
