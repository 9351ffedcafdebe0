# SPDX-License-Identifier: Apache-2.0
"""PASTA (arXiv 2502.11517): promises are decoded beside the main thread, until it syncs::

    The main thread:   ...<promise topic="cats" tokens="30"/>...<sync/>...
    A child:           <async>...</async>, begun by the engine after its promise
    After the sync:    the chunks follow <sync/>, in the order of their promises

The tags are those of the paper's summaries. Neither the interpreter nor a checkpoint could be read, so it is not
confirmed which of them are single tokens (the published vocabulary has five added ones), where exactly chunks are put
(its authors say that they are stitched back into place, which may mean the place of the promise in the answer), and
whether the engine or the model writes ``<async>``. So tags are recognized as text, however a tokenizer cuts them.

Here it differs: the paper's children get positions that leave room for the promised number of tokens. Here a child's
positions follow its promise, and merged chunks those before them.
"""

import re
from collections.abc import Sequence

from sequence_hooks.config.notations import Notation
from sequence_hooks.handlers import Actions, Merged, PrefixOf, Spawn, TokenEvent
from sequence_hooks.protocols.tags import closing, ending_with, text_since
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of

NOTATION = Notation(
    fields={
        "handlers": {"/>": "sequence_hooks.protocols.pasta.handler"},
        "sync_token": "<sync/>",
        "block_on": "sync",
        "trigger_by": "text",
    }
)
"""What it configures."""

_PROMISE = re.compile(r"promise\b[^<>]*/>")
_MAX_TAG = 256
"""The most tokens that a tag has which is looked at."""


class Promise:
    """Spawns a chunk where a tag ends that is a promise. Other tags that end alike are text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spawn = Spawn(prefix_ids_of("<async>", tokenizer), ending_with("</async>", tokenizer))
        self._actions = Actions((spawn,))

    def on_token(self, event: TokenEvent) -> Actions:
        latest = [*event.output_token_ids[-_MAX_TAG:], event.token_id]
        tag = text_since("<", latest, self._tokenizer)
        if tag is not None and _PROMISE.match(tag):
            return self._actions
        promise = text_since("<promise", latest, self._tokenizer)
        return Actions(is_malformed=promise is not None and promise.count("/>") == 1)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """Each chunk with its tags: the opening one was the child's prefix, the closing one ended it."""
        closed = ((child, closing(child, "</async>", "</async>", self._tokenizer)) for child in children)
        return [piece for child, ending in closed for piece in (PrefixOf(child), child, *ending)]


handler = Promise
