# SPDX-License-Identifier: Apache-2.0
"""Tiny random models that see images: BLIP-2 with a Llama, and PaddleOCR-VL, whose positions have three components."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from forkjoin_tokenizer import CHARACTERS, SPECIAL_TOKENS, build_tokenizer
from PIL import Image
from transformers import (
    AutoTokenizer,
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessor,
    LlamaConfig,
    PaddleOCRVLConfig,
    PaddleOCRVLForConditionalGeneration,
    PaddleOCRVLProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil

NUM_BLIP_TOKENS = 4
"""Of an image. They stand before the prompt's own tokens."""

FIRST_OF_IMAGES = len(SPECIAL_TOKENS) + len(CHARACTERS)
"""The tokens from here on mean images; no sequence is to sample one."""

_BLIP_IMAGE = "<image>"
_START, _END, _PAD = _OF_PADDLE = ("<|IMAGE_START|>", "<|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>")
_SIDE = 56
"""Of an image, in pixels: two by two of tokens."""

_TEXT: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "bos_token_id": None}
_TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2}
_VISION: dict[str, Any] = {"intermediate_size": 64, "hidden_size": 32, "patch_size": 14}


@dataclass(frozen=True)
class Vision:
    """A model that sees images."""

    save: Callable[[Path], None]
    """Save it with its processor."""

    prompt: Callable[[PreTrainedTokenizerFast, str], list[int]]
    """The prompt about an image, as a client sends it."""

    unexpanded: Callable[[PreTrainedTokenizerFast, list[int]], list[int]]
    """A context as a client sends it: the engine itself makes the tokens of an image of it."""

    promise: int
    sync: int
    """Tokens that it is fond of."""

    num_images: Callable[[Mapping[str, Any]], int]
    """Of a call of its encoder."""


def image(seed: int) -> Image.Image:
    noise = torch.randint(256, (_SIDE, _SIDE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(noise.numpy())


def _save_blip(folder: Path) -> None:
    torch.manual_seed(0)
    tokenizer = build_tokenizer("", (_BLIP_IMAGE,))
    small = {**_VISION, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **_TEXT)
    config = Blip2Config(
        vision_config={**small, "image_size": _SIDE},
        qformer_config={**small, "vocab_size": 8, "encoder_hidden_size": small["hidden_size"]},
        text_config=text.to_dict(),
        num_query_tokens=NUM_BLIP_TOKENS,
        image_token_index=tokenizer.convert_tokens_to_ids(_BLIP_IMAGE),
    )
    model = Blip2ForConditionalGeneration(config)
    _widen(model.vision_model, model.qformer, model.language_projection)
    with torch.no_grad():
        model.query_tokens.normal_()
    model.save_pretrained(folder)
    make_processor: Any = Blip2Processor
    images = BlipImageProcessor(size={"height": _SIDE, "width": _SIDE})
    make_processor(images, tokenizer, num_query_tokens=NUM_BLIP_TOKENS).save_pretrained(folder)


def _save_paddle(folder: Path) -> None:
    torch.manual_seed(0)
    build_tokenizer("", _OF_PADDLE).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, extra_special_tokens={"image_token": _PAD})
    vocabulary = tokenizer.get_vocab()
    start, end, pad = (vocabulary[each] for each in _OF_PADDLE)
    rotary = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
    own = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "head_dim": 32}
    config = PaddleOCRVLConfig(
        vision_config={**_VISION, "image_size": _SIDE, "num_hidden_layers": 2, "num_attention_heads": 2},
        text_config={**_TEXT, **own, "rope_parameters": rotary, "tie_word_embeddings": False},
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=pad,
        tie_word_embeddings=False,
    )
    make_model: Any = PaddleOCRVLForConditionalGeneration
    model = make_model(config)
    _widen(model.model.visual)
    model.save_pretrained(folder)
    make_processor: Any = PaddleOCRVLProcessor
    images = PaddleOCRVLImageProcessorPil(min_pixels=_SIDE**2, max_pixels=_SIDE**2)
    make_processor(images, tokenizer).save_pretrained(folder)


def _widen(*parts: torch.nn.Module) -> None:
    """Make what the model says depend on the image."""
    with torch.no_grad():
        for part in parts:
            for weight in part.parameters():
                weight.normal_(0, 0.3)


def _collapsed(tokenizer: PreTrainedTokenizerFast, context: list[int]) -> list[int]:
    pad = tokenizer.convert_tokens_to_ids(_PAD)
    return [each for token_id, run in groupby(context) for each in (list(run)[:1] if token_id == pad else run)]


VISION = {
    "blip-2": Vision(
        _save_blip,
        lambda tokenizer, text: tokenizer.encode(text),
        lambda tokenizer, context: context[NUM_BLIP_TOKENS:],
        13,
        4,
        lambda given: len(given["pixel_values"]),
    ),
    "paddleocr_vl": Vision(
        _save_paddle,
        lambda tokenizer, text: tokenizer.encode(f"{_START}{_PAD}{_END}{text}"),
        _collapsed,
        18,
        24,
        lambda given: len(given["image_grid_thw"]),
    ),
}
