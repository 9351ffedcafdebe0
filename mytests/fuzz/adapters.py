# SPDX-License-Identifier: Apache-2.0
"""Tiny random LoRA adapters for the fuzzer's model: in PEFT's format, and merged into its weights by hand."""

import json
import tempfile
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from vllm.lora.request import LoRARequest

NUM_ADAPTERS, MAX_RANK = 3, 8
SCALE = 0.2
"""The scale of the factors: an adapter changes each weight by about the weight's own magnitude."""

_PROJECTIONS = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]


def lora_request(number: int) -> LoRARequest | None:
    """The request for adapter ``number``, 1 to `NUM_ADAPTERS`; None for 0, the unchanged model."""
    return LoRARequest(f"adapter{number}", number, str(_folder(number))) if number else None


def with_adapter(model: LlamaForCausalLM, number: int) -> LlamaForCausalLM:
    rank, factors = _rank(number), _factors(number)
    with torch.no_grad():
        for module, (down, up) in factors.items():
            change = _alpha(number) / rank * (up @ down)
            # For an embedding, PEFT's factors give the transposed change.
            model.get_parameter(f"{module}.weight").add_(change.T if module.endswith("embed_tokens") else change)
    return model


def _modules(number: int) -> list[str]:
    """The modules that an adapter changes: all layers and, by its number, the embeddings, the head, or both."""
    layers = [f"model.layers.{layer}.{name}" for layer in range(2) for name in _PROJECTIONS]
    return layers + [["model.embed_tokens"], ["lm_head"], ["model.embed_tokens", "lm_head"]][number - 1]


def _rank(number: int) -> int:
    return min(2 << number, MAX_RANK)


def _alpha(number: int) -> int:
    return _rank(number) * number


@cache
def _factors(number: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The factors of each module: down to the rank, [rank, inputs], and up from it, [outputs, rank]."""
    generator, rank = torch.Generator().manual_seed(number), _rank(number)
    shapes = {"q_proj": (128, 128), "k_proj": (128, 64), "v_proj": (128, 64), "o_proj": (128, 128)}
    shapes |= {"gate_proj": (128, 256), "up_proj": (128, 256), "down_proj": (256, 128)}
    shapes |= {"embed_tokens": (512, 128), "lm_head": (128, 512)}
    factors = {}
    for module in _modules(number):
        inputs, outputs = shapes[module.rsplit(".", 1)[-1]]
        down, up = (torch.randn(shape, generator=generator) for shape in ((rank, inputs), (outputs, rank)))
        factors[module] = SCALE / number**0.5 * down, SCALE / number**0.5 * up
    return factors


@cache
def _folder(number: int) -> Path:
    folder = Path(_temporary_folder().name) / str(number)
    folder.mkdir()
    tensors = {}
    for module, (down, up) in _factors(number).items():
        name = "lora_embedding_{}" if module.endswith("embed_tokens") else "lora_{}.weight"
        for letter, factor in (("A", down), ("B", up)):
            tensors[f"base_model.model.{module}.{name.format(letter)}"] = factor
    save_file(tensors, folder / "adapter_model.safetensors")
    names = sorted({module.rsplit(".", 1)[-1] for module in _factors(number)})
    config = {"peft_type": "LORA", "r": _rank(number), "lora_alpha": _alpha(number), "target_modules": names}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()
