# SPDX-License-Identifier: Apache-2.0
"""Which sampled token fires which hook: one with an id of its own, or the one that completes a text.

A tokenizer may cut the text ``</Go>`` in several ways, and the token that completes it may contain more than its end:

    sampled       a  </  Go  >      a</  G  o>  b
    the trigger      └───────┘      └────────┘           all tokens that contain a part of it
    fires at                 >               o>          once, whatever follows

What was merged or inserted is no part of a trigger, nor is the prompt: a text that begins there does not fire.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.handlers import TokenHandler
from sequence_hooks.handlers.builtin import make_handlers
from sequence_hooks.text.encoding import Tokenizer
from sequence_hooks.text.messages import abbreviated
from sequence_hooks.text.spelling import can_spell


@dataclass(frozen=True)
class TriggerMatch:
    """A hook that a token has fired."""

    handler: TokenHandler
    num_tokens: int
    """The tokens that contain its trigger, the last one included."""


class Triggers:
    """The hooks of one engine.

    Args:
        handlers: By token id, or by text.
        tokenizer: Read only if a text is given.
    """

    def __init__(self, handlers: Mapping[int | str, TokenHandler], tokenizer: Tokenizer | None) -> None:
        self.by_id = {key: handler for key, handler in handlers.items() if isinstance(key, int)}
        self._texts = _Texts({key: each for key, each in handlers.items() if isinstance(key, str)}, tokenizer)
        self.candidates: Set[int] = self.by_id.keys() | self._texts.candidates
        """The only tokens that can fire a hook."""

    @classmethod
    def of(cls, special_kwargs: SpecialKwargs, tokenizer: Tokenizer | None) -> "Triggers":
        """The configured hooks; raises a `ValueError` if a handler cannot be made, or a text never be sampled."""
        return cls(make_handlers(special_kwargs, tokenizer), tokenizer)

    def match(self, token_id: int, context: Sequence[int], num_sampled: int) -> TriggerMatch | None:
        """The hook that a token fires, if any; of several that it completes, the one that ends first.

        Args:
            token_id: The token that was sampled just now, one of `candidates`.
            context: The tokens before it.
            num_sampled: How many of them, at the end, were sampled in a row by the same sequence.
        """
        handler = self.by_id.get(token_id)
        if handler is not None:
            return TriggerMatch(handler, 1)
        return self._texts.match(token_id, context, num_sampled) if token_id in self._texts.candidates else None


class _Texts:
    """The hooks whose triggers are texts."""

    def __init__(self, handlers: Mapping[str, TokenHandler], tokenizer: Tokenizer | None) -> None:
        self._handlers = handlers
        self.candidates: Set[int] = set()
        # Each token but those of a prompt has a byte of the text at least.
        self._num_read = max((len(text.encode()) for text in handlers), default=0) + 1
        if handlers:
            assert tokenizer is not None, "the checks at the start refuse a text without a tokenizer"
            self._tokenizer = tokenizer
            vocabulary = tokenizer.get_vocab()
            for text in handlers:
                _check_spelling(text, tokenizer)
            self.candidates = _tokens_with({text[-1] for text in handlers}, vocabulary)

    def match(self, token_id: int, context: Sequence[int], num_sampled: int) -> TriggerMatch | None:
        num_before = min(len(context), self._num_read)
        window = [*context[len(context) - num_before :], token_id]
        # Tokens before what was sampled are decoded with it, since a token's text may depend on the one before.
        border = len(self._text(window[: max(0, num_before - num_sampled)]))
        before, text = len(self._text(window[:-1])), self._text(window)
        found = [
            (start + len(trigger), -len(trigger), start, trigger)
            for trigger in self._handlers
            if (start := text.find(trigger, max(border, before - len(trigger) + 1))) >= 0
        ]
        if not found:
            return None
        _, _, start, trigger = min(found)
        return TriggerMatch(self._handlers[trigger], self._num_tokens_from(window, start))

    def _num_tokens_from(self, window: Sequence[int], start: int) -> int:
        """How many of the last tokens contain the text from ``start`` on."""
        num_tokens = 1
        while num_tokens < len(window) and len(self._text(window[:-num_tokens])) > start:
            num_tokens += 1
        return num_tokens

    def _text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, without half a character at its end."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False).rstrip("\ufffd")


def _check_spelling(text: str, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    unknown = [character for character in text if not _tokens_with({character}, vocabulary)]
    if unknown:
        reason = f"no token of the model's tokenizer has the character {unknown[0]!r}"
    elif not can_spell(text, tokenizer):
        reason = "the tokens of the model's tokenizer cannot be put together to it"
    else:
        return
    raise ValueError(
        f"special_kwargs: the hook {abbreviated(text)} can never be sampled: {reason}; use a model that was trained "
        "with this hook, or a text of its vocabulary"
    )


def _tokens_with(characters: set[str], vocabulary: Mapping[str, int]) -> Set[int]:
    """The tokens that may contain one of ``characters``. Vocabularies show printable ASCII as it is."""
    if all(character.isascii() and character.isprintable() and character != " " for character in characters):
        return {token_id for token, token_id in vocabulary.items() if not characters.isdisjoint(token)}
    return set(vocabulary.values())
