# SPDX-License-Identifier: Apache-2.0
"""The oracle of injected KV for a model that sees images, and whose positions have three components."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mytests.fuzz.injection_oracle import Layout, Token
from mytests.fuzz.injection_pass import Rows


class Seen:
    """A model, and the image in each context; the processor takes a ``prompt`` with its placeholder."""

    def __init__(self, folder: Path, image: Image.Image, prompt: str) -> None:
        models: Any = AutoModelForImageTextToText
        processors: Any = AutoProcessor
        self._model = models.from_pretrained(folder).float().eval()
        self.config = self._model.config.get_text_config()
        self._inputs = processors.from_pretrained(folder)(text=[prompt], images=[image], return_tensors="pt")
        with torch.inference_mode():
            visual = self._model.model.get_image_features(self._inputs["pixel_values"], self._inputs["image_grid_thw"])
        self.features = torch.cat(tuple(visual.pooler_output))

    def __call__(self, **inputs: Any) -> Any:
        return self._model(**inputs)

    def embeddings(self, token_ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._model.get_input_embeddings()(token_ids)
        return found

    def is_of_image(self, token: Token) -> bool:
        return bool(token.token_id == self._model.config.image_token_id)

    def positions(self, context: Sequence[int]) -> torch.Tensor:
        """Of a context with the image, [3, num_tokens]."""
        ids = torch.tensor([list(context)])
        types = (ids == self._model.config.image_token_id).int()
        positions, _ = self._model.model.get_rope_index(
            input_ids=ids, mm_token_type_ids=types, image_grid_thw=self._inputs["image_grid_thw"]
        )
        found: torch.Tensor = positions[:, 0]
        return found


class SeeingRows(Rows):
    """Rows whose tokens of the image are what the encoder makes of it."""

    def __init__(self, seen: Seen, root: Layout, tokens: Sequence[Token]) -> None:
        # What follows the prompt is text, of which all components are equal.
        self._positions = seen.positions([*root.node.prompt, 0])
        self._first = next(index for index, token in enumerate(root.tokens) if seen.is_of_image(token))
        super().__init__(seen, tokens)

    def inputs(self, model: Any, rows: Sequence[Token]) -> dict[str, torch.Tensor]:
        """With positions of three components, [3, 1, num_rows]."""
        embeddings = model.embeddings(torch.tensor([token.token_id for token in rows]))
        for place, token in enumerate(rows):
            if model.is_of_image(token):
                embeddings[place] = model.features[token.original.position - self._first]
        positions = torch.stack([self._position(token) for token in rows], dim=1)
        return {"inputs_embeds": embeddings[None], "position_ids": positions[:, None]}

    def _position(self, token: Token) -> torch.Tensor:
        original, last = token.original.position, self._positions.shape[1] - 1
        found = self._positions[:, min(original, last)] + max(0, original - last)
        return found + token.position - token.original.position
