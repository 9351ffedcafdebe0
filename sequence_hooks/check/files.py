# SPDX-License-Identifier: Apache-2.0
"""What a model's files say: its tokenizer, its vocabulary, its length, its layers."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sequence_hooks.check.layers import Layers
from sequence_hooks.text.encoding import Tokenizer


@dataclass(frozen=True)
class ModelFiles:
    """A model, without its weights."""

    tokenizer: Tokenizer
    vocab_size: int
    """Rows of its output; a tokenizer may have fewer tokens."""

    max_len: int | None
    """Tokens of a context; None if its configuration does not say."""

    has_chat_template: bool
    hidden: frozenset[int]
    """The tokens that ``skip_special_tokens`` leaves out of texts."""

    chat: Callable[[list[dict[str, str]]], list[int]]
    """The tokens of a conversation."""

    layers: Layers

    @classmethod
    def of(cls, model: str, max_len: int | None, trusts_code: bool) -> "ModelFiles":
        """Read the files of ``model``, a folder or a name on the hub.

        Args:
            max_len: Instead of the model's own.

        Raises:
            OSError, ValueError: they are missing, or cannot be read.
        """
        # An import of seconds, which no engine needs from here.
        transformers: Any = importlib.import_module("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=trusts_code)
        config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=trusts_code)
        text = config.get_text_config()
        return cls(
            tokenizer=tokenizer,
            vocab_size=text.vocab_size,
            max_len=max_len or getattr(text, "max_position_embeddings", None),
            has_chat_template=getattr(tokenizer, "chat_template", None) is not None,
            hidden=_hidden(tokenizer),
            chat=tokenizer.apply_chat_template,
            layers=Layers.of(model, config, trusts_code),
        )


def _hidden(tokenizer: Any) -> frozenset[int]:
    """Special tokens, whether they have a name, such as ``eos_token``, or were only added as special ones."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(tokenizer.all_special_ids).union(token_id for token_id, token in added if token.special)
