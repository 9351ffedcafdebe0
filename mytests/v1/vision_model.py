# SPDX-License-Identifier: Apache-2.0
"""A tiny random model that sees images: BLIP-2 with a Llama, which transformers can save without torchvision."""

from pathlib import Path
from typing import Any

import torch
from forkjoin_tokenizer import build_tokenizer
from PIL import Image
from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, BlipImageProcessor, LlamaConfig

IMAGE = "<image>"
NUM_IMAGE_TOKENS = 4
"""They stand before the prompt's own tokens."""

_SIDE = 28
"""Of an image, in pixels."""


def save_model(folder: Path) -> str:
    """Save the model with its processor; returns the folder."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer("", (IMAGE,))
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.2,
    )
    config = Blip2Config(
        vision_config={**small, "image_size": _SIDE, "patch_size": 14},
        qformer_config={**small, "vocab_size": 8, "encoder_hidden_size": small["hidden_size"]},
        text_config=text.to_dict(),
        num_query_tokens=NUM_IMAGE_TOKENS,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
    )
    model = Blip2ForConditionalGeneration(config)
    with torch.no_grad():
        # So wide that what the model says depends on the image.
        for part in (model.vision_model, model.qformer, model.language_projection):
            for weight in part.parameters():
                weight.normal_(0, 0.3)
        model.query_tokens.normal_()
    model.save_pretrained(folder)
    size = {"height": _SIDE, "width": _SIDE}
    make_processor: Any = Blip2Processor
    make_processor(BlipImageProcessor(size=size), tokenizer, num_query_tokens=NUM_IMAGE_TOKENS).save_pretrained(folder)
    return str(folder)


def image(seed: int) -> Image.Image:
    """An image of noise."""
    noise = torch.randint(256, (_SIDE, _SIDE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(noise.numpy())
