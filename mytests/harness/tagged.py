# SPDX-License-Identifier: Apache-2.0
"""Surgical engines of published notations: tokens are bytes, or whole tags where a model has them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from mytests.harness.spoken import TOKENIZER
from mytests.harness.surgical import EOS, Prompts, SpecialKwargs, SurgicalEngine, finished
from sequence_hooks.config.tokens import with_token_ids


class Notation:
    """The engines of one protocol, with further fields, whose tags are one token each beside the tokens of ``base``."""

    def __init__(self, protocol: str, tags: Sequence[str], base: Any = TOKENIZER, **fields: Any) -> None:
        copied = Tokenizer.from_str(base.backend_tokenizer.to_str())
        copied.add_tokens(list(tags))
        self.tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=copied, eos_token="<eos>")
        self.name = protocol
        self.fields = {"protocol": protocol, **fields}

    def engine(
        self, prompts: Prompts | None = None, other_sizes: Mapping[str, Any] = MappingProxyType({}), **params: Any
    ) -> SurgicalEngine:
        """An engine with one request "r", which keeps the prompt of each sequence in ``prompts``."""
        special_kwargs = with_token_ids(SpecialKwargs(**self.fields), self.tokenizer)
        sizes: dict[str, Any] = {"max_model_len": 2048, "num_blocks": 1024, "max_num_batched_tokens": 4096}
        sizes |= {"prompts": prompts, **other_sizes}
        engine = SurgicalEngine(special_kwargs, tokenizer=self.tokenizer, vocab_size=len(self.tokenizer), **sizes)
        engine.add(**{"max_tokens": 1500, **params})
        return engine

    def stream(self, others: str = "", **texts: str) -> Callable[[Any], int]:
        """Tokens of texts by request id, or of that of all ``others``; each followed by the EOS."""
        scripts = {name: [*self.ids(text), EOS] for name, text in texts.items()}
        of_others = [*self.ids(others), EOS]

        def choose(sampling: Any) -> int:
            script, position = scripts.get(sampling.request_id, of_others), sampling.num_sampled
            # An asynchronous worker samples on after its request has ended.
            return script[min(position, len(script) - 1)]

        return choose

    def ids(self, text: str) -> list[int]:
        token_ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, without the EOS."""
        text: str = self.tokenizer.decode([each for each in token_ids if each != EOS], skip_special_tokens=False)
        return text


MAX_STEPS = 1500


def run(notation: Notation, others: str = "", prompts: Any = None, **texts: str) -> SurgicalEngine:
    """An engine that has run one request, and its children, on these texts; see `Notation.stream`."""
    engine = notation.engine(prompts)
    engine.run(notation.stream(others, **texts), MAX_STEPS)
    return engine


def text_of(notation: Notation, engine: SurgicalEngine) -> str:
    """The text of the request's tokens, tags included."""
    return notation.text(finished(engine).token_ids)


def children_of(engine: SurgicalEngine) -> Sequence[Any]:
    return finished(engine).children
