# SPDX-License-Identifier: Apache-2.0
"""The forward pass of the oracle for injected KV, by transformers: one for all that the sequences of a request see."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

from mytests.fuzz.injection_oracle import Layout, Token
from mytests.fuzz.plan import Plan
from mytests.fuzz.tokens import Model


class KV(NamedTuple):
    """A layer's keys and values, both [num_tokens, num_kv_heads, head_size]."""

    keys: torch.Tensor
    values: torch.Tensor


class Rows:
    """One forward pass over tokens and all that they see. Results are in the order of the requested tokens."""

    def __init__(self, model: Any, tokens: Sequence[Token]) -> None:
        self._index: dict[Token, int] = {}
        for token in tokens:
            self._add(token)
        rows = list(self._index)
        with torch.inference_mode():
            self._output = model(
                **self.inputs(model, rows),
                attention_mask=self._masks(model.config),
                # It returns the keys and values of all rows; nothing is read from it.
                past_key_values=DynamicCache(),
            )

    def __len__(self) -> int:
        return len(self._index)

    def inputs(self, model: Any, rows: Sequence[Token]) -> dict[str, torch.Tensor]:
        """The model's arguments that say which tokens ``rows`` are, and where."""
        return {
            "input_ids": torch.tensor([[token.token_id for token in rows]]),
            "position_ids": torch.tensor([[token.position for token in rows]]),
        }

    def logits(self, tokens: Sequence[Token]) -> torch.Tensor:
        """The logits of these tokens, [num_tokens, vocabulary]."""
        return self._output.logits[0, self._places(tokens)]

    def kv(self, tokens: Sequence[Token]) -> list[KV]:
        """The KV of each layer, with rotated keys."""
        places = self._places(tokens)
        layers = self._output.past_key_values
        return [
            KV(keys[0, :, places].transpose(0, 1), values[0, :, places].transpose(0, 1)) for keys, values, *_ in layers
        ]

    def _masks(self, config: Any) -> torch.Tensor | dict[str, torch.Tensor]:
        """What each row sees, for each kind of layers if there are several. Windows count the tokens of a context,
        whatever their positions."""
        kinds = set(getattr(config, "layer_types", None) or ())
        if len(kinds) < 2:
            return self._mask(lambda length: 0)
        first_of: dict[str, Callable[[int], int]] = {
            "full_attention": lambda length: 0,
            "sliding_attention": lambda length: max(0, length + 1 - config.sliding_window),
            "chunked_attention": lambda length: length - length % config.attention_chunk_size,
        }
        return {kind: self._mask(first_of[kind]) for kind in kinds}

    def _mask(self, first_seen: Callable[[int], int]) -> torch.Tensor:
        """``first_seen`` is the index of the first token that one sees in its context, by how many are before it."""
        mask = torch.full((len(self), len(self)), torch.finfo(torch.float32).min).fill_diagonal_(0.0)
        for row, token in enumerate(self._index):
            mask[row, self._places(token.context[first_seen(len(token.context)) :])] = 0.0
        return mask[None, None]

    def _add(self, token: Token) -> None:
        if token not in self._index:
            for seen in token.context:
                self._add(seen)
            self._index[token] = len(self._index)

    def _places(self, tokens: Sequence[Token]) -> list[int]:
        return [self._index[token] for token in tokens]


class InjectionModel(Model):
    """The reference of `mytests.fuzz.tokens`, for injected KV."""

    def rows(self, root: Layout) -> Rows:
        """What the model computes for all sequences of a request."""
        wanted = [[*layout.sampled_from.values(), *layout.tokens] for layout in root.walk()]
        return Rows(self._model, [token for tokens in wanted for token in tokens])

    def check_request(self, root: Layout, rows: Rows, plan: Plan) -> int:
        """`check` for one request; returns the number of its sequences."""
        self._request = root, rows
        return self.check([(root.node, plan)])

    def _logits(self, contexts: list[tuple[int, ...]]) -> Iterator[torch.Tensor]:
        root, rows = self._request
        for layout in root.walk():
            for stretch in layout.node.stretches:
                sampled = rows.logits([layout.sampled_from[position] for position, _ in stretch.sampled])
                logits = sampled.new_zeros(len(stretch.tokens), sampled.shape[1])
                logits[[index - 1 for _, index in stretch.sampled]] = sampled
                yield logits
