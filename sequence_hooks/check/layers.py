# SPDX-License-Identifier: Apache-2.0
"""The kinds of a model's layers, and whether hooks work with them on a current vLLM, with the plug-in.

A current vLLM that is installed tells what it makes of the model; without one, only the model's configuration does.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sequence_hooks.config.refusals import GENERATES, NO_ENCODER, ONE_BY_ONE, refused
from sequence_hooks.text.messages import abbreviated_error

FULL, LATENT, WINDOW, CHUNK, STATE = "full attention", "latent attention", "windows", "chunks", "states"
KINDS = (FULL, LATENT, WINDOW, CHUNK, STATE)

_OF_TYPES: Mapping[str, str] = {
    "sliding": WINDOW,
    "chunked": CHUNK,
    **dict.fromkeys(("mamba", "linear", "conv", "recurrent", "hybrid"), STATE),
}
"""The kinds of transformers' types of layers, by a part of their names; the others have attention, or nothing."""

_OF_STATES = ("mamba_", "ssm_", "state_size", "conv_L_cache", "linear_conv")
"""How fields of models with states begin, where no field has the types of layers."""

_OF_POOLING = ("Classification", "RewardModel", "RewardModeling", "MaskedLM", "EmbeddingModel", "TextEncoding")
"""How architectures that do not generate end."""


@dataclass(frozen=True)
class Layers:
    """What is known of a model's layers."""

    kinds: tuple[str, ...]
    """Of `KINDS`."""

    refusal: str | None
    """With what message an engine of this model is refused, whatever its layers are; None if it is not."""

    source: str
    """Who says so."""

    @classmethod
    def of(cls, model: str, config: Any, trusts_code: bool) -> "Layers":
        """Those of ``model``, of which transformers has read ``config``."""
        layers = _by_fields(model, config)
        if not _has_current_vllm():
            return layers
        # vLLM reads these when it is imported; its log is not to mix with the report.
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        try:
            arguments = import_module("vllm.engine.arg_utils").EngineArgs(model=model, trust_remote_code=trusts_code)
            return _by_vllm(arguments.create_model_config(), import_module("vllm").__version__)
        except Exception as error:
            return replace(layers, source=f"{layers.source}; vLLM cannot tell: {abbreviated_error(error)}")


def _has_current_vllm() -> bool:
    """Whether it is one for the plug-in: the fork's would take seconds to import, and has another configuration."""
    spec = find_spec("vllm")
    return spec is not None and not (Path(spec.origin or "").parent / "_overlay.py").exists()


def _by_fields(model: str, config: Any) -> Layers:
    text = config.get_text_config()
    architectures = config.architectures or ()
    refusal = None
    if config.is_encoder_decoder:
        refusal = refused(f"model={model!r}", NO_ENCODER)
    elif any(name.endswith(_OF_POOLING) for name in architectures):
        refusal = refused("runner='pooling'", GENERATES)
    elif getattr(config, "canvas_length", None) is not None:
        refusal = refused(f"model={model!r}", ONE_BY_ONE)
    return Layers(_in_order(_kinds_of(text)), refusal, "by config.json alone")


def _by_vllm(model: Any, version: str) -> Layers:
    faults = [
        (model.runner_type != "generate", "runner", model.runner_type, GENERATES),
        (model.is_encoder_decoder, "model", model.model, NO_ENCODER),
        (model.is_diffusion, "model", model.model, ONE_BY_ONE),
    ]
    kinds = _kinds_of(model.hf_text_config)
    if not kinds.isdisjoint((FULL, LATENT)):
        # Some models with latent vectors compute their keys and values from them, and keep these.
        kinds = kinds - {FULL, LATENT} | {LATENT if model.use_mla else FULL}
    if model.is_attention_free:
        kinds = {STATE}
    elif model.is_hybrid:
        kinds = kinds | {STATE}
    else:
        kinds = kinds - {STATE} or {FULL}
    told = (refused(f"{name}={value!r}", way_out) for is_fault, name, value, way_out in faults if is_fault)
    refusal = next(told, None)
    return Layers(_in_order(kinds), refusal, f"by vLLM {version}")


def _kinds_of(text: Any) -> set[str]:
    """The kinds that the fields of a model's configuration, or of its part for text, tell of."""
    types = set(getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None) or ())
    kinds = {kind for each in types for part, kind in _OF_TYPES.items() if part in each}
    if any("hybrid" in each or ("attention" in each and not _has_part(each)) for each in types):
        kinds.add(_attention(text))
    if types:
        return kinds
    if any(name.startswith(_OF_STATES) for name, value in text.to_dict().items() if value is not None):
        return {STATE, _attention(text)} if getattr(text, "num_attention_heads", None) else {STATE}
    if getattr(text, "attention_chunk_size", None) is not None:
        return {CHUNK, FULL}
    has_window = getattr(text, "sliding_window", None) is not None and getattr(text, "use_sliding_window", True)
    return {WINDOW} if has_window else {_attention(text)}


def _has_part(layer_type: str) -> bool:
    return any(part in layer_type for part in _OF_TYPES)


def _attention(text: Any) -> str:
    return FULL if getattr(text, "kv_lora_rank", None) is None else LATENT


def _in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(kinds, key=KINDS.index))
