# SPDX-License-Identifier: Apache-2.0
"""What is known of a child when it is spawned: the one value that decisions, trees, recordings and front ends carry."""

import msgspec

from sequence_hooks.config.choices import ChildContext


class ChildSpec(msgspec.Struct, frozen=True):
    """How a child is spawned. Its prompt is the first ``num_shared`` tokens of its parent's context, then the prefix.

    Plain values only, so that it can be written to a file or sent to another process. Only
    ``sequence_hooks.tree.rules.decide`` makes it, and it is always passed on as a whole.
    """

    request_id: str
    parent_id: str
    number: int
    """Its index among its parent's children."""

    position: int
    """Output tokens of its parent at the spawn, including the token that spawns it."""

    num_trigger_tokens: int
    """Tokens of its parent's output, up to ``position``, that contain the trigger."""

    num_shared: int
    """Tokens of its parent's context that its own begins with."""

    prefix_token_ids: tuple[int, ...]
    context: ChildContext
    is_detached: bool
    """Whether its parent neither waits for it nor sees it."""

    label: str = ""
    """What the child is about, in words for callers and pictures."""

    @property
    def num_prompt_tokens(self) -> int:
        """The length of its prompt."""
        return self.num_shared + len(self.prefix_token_ids)
