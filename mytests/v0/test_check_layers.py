# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks check``: what it says of a model's layers; `mytests/v1/test_check_layers.py` asks vLLM."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PretrainedConfig

from sequence_hooks.check import layers
from sequence_hooks.check.findings import layers_finding
from sequence_hooks.check.layers import CHUNK, FULL, LATENT, STATE, WINDOW, Layers

FULL_TOO: Any = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
COMPONENTS: Any = {"rope_scaling": {"mrope_section": [1, 1, 2]}}


def said(config: PretrainedConfig, injects_kv: bool = False) -> tuple[bool, str]:
    """Whether hooks work with a model of this configuration, and the line of the finding."""
    finding = layers_finding(Layers.of("a-model", config, trusts_code=False), injects_kv)
    return finding.fits, finding.says


def beside(monkeypatch: pytest.MonkeyPatch, folder: Path, **told: Any) -> None:
    """Install a current vLLM that tells this of a model; with ``error``, it raises that."""

    def create_model_config() -> Any:
        if "error" in told:
            raise told["error"]
        return SimpleNamespace(**{**TOLD, **told})

    engine_args = SimpleNamespace(create_model_config=create_model_config)
    package = SimpleNamespace(__version__="0.32.0", EngineArgs=lambda **_: engine_args)
    monkeypatch.setattr(layers, "find_spec", lambda _: SimpleNamespace(origin=str(folder / "__init__.py")))
    monkeypatch.setattr(layers, "import_module", lambda _: package)


TOLD: dict[str, Any] = {
    "hf_text_config": PretrainedConfig(),
    "model": "a-model",
    "runner_type": "generate",
    **dict.fromkeys(("is_encoder_decoder", "is_diffusion", "use_mla", "is_attention_free", "is_hybrid"), False),
}


@pytest.mark.parametrize(
    ("fields", "told", "kinds"),
    [
        ({}, None, (FULL,)),
        ({"layer_types": ["full_attention"], "sliding_window": 8}, None, (FULL,)),
        ({"kv_lora_rank": 64}, None, (LATENT,)),
        ({"layer_types": ["indexed_attention"], "kv_lora_rank": 64}, None, (LATENT,)),
        ({"sliding_window": 8}, None, (WINDOW,)),
        ({"sliding_window": 8, "use_sliding_window": False}, None, (FULL,)),
        (FULL_TOO, None, (FULL, WINDOW)),
        ({"layer_types": ["chunked_attention", "full_attention"]}, None, (FULL, CHUNK)),
        ({"attention_chunk_size": 8}, None, (FULL, CHUNK)),
        ({"layer_types": ["linear_attention"]}, None, (STATE,)),
        ({"layer_types": ["linear_attention", "full_attention"], "kv_lora_rank": 64}, None, (LATENT, STATE)),
        ({"layer_types": ["hybrid", "linear_attention"]}, None, (FULL, STATE)),
        ({"layer_types": ["mlp", "full_attention", "mamba"]}, None, (FULL, STATE)),
        ({"layers_block_type": ["recurrent", "attention"]}, None, (FULL, STATE)),
        ({"mamba_d_ssm": 256, "num_attention_heads": 4}, None, (FULL, STATE)),
        ({"state_size": 16}, None, (STATE,)),
        ({}, {}, (FULL,)),
        ({}, {"use_mla": True}, (LATENT,)),
        ({}, {"hf_text_config": PretrainedConfig(kv_lora_rank=64)}, (FULL,)),
        ({}, {"is_attention_free": True}, (STATE,)),
        ({}, {"is_hybrid": True}, (FULL, STATE)),
        ({}, {"hf_text_config": PretrainedConfig(layer_types=["linear_attention", "full_attention"])}, (FULL,)),
        ({}, {"hf_text_config": PretrainedConfig(state_size=16)}, (FULL,)),
    ],
)
def test_kinds_are_told(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fields: dict[str, Any],
    told: dict[str, Any] | None,
    kinds: tuple[str, ...],
) -> None:
    """By the types of layers or other fields; a current vLLM knows better of states, and of latent attention."""
    if told is not None:
        beside(monkeypatch, tmp_path, **told)
    fits, says = said(PretrainedConfig(**fields))
    source = "config.json alone" if told is None else "vLLM 0.32.0"
    assert fits and says.startswith(f"{', '.join(kinds)} (by {source}): work with the plug-in")


@pytest.mark.parametrize(
    ("fields", "injects_kv", "end"),
    [
        ({"state_size": 16}, False, "work with the plug-in"),
        ({"layer_types": ["conv", "full_attention"]}, False, "may need mamba_cache_mode='align'"),
        (FULL_TOO, True, "with kv_inject those with a window keep the KV of the whole context"),
        *(
            (fields, True, "work with the plug-in")
            for fields in ({}, {"kv_lora_rank": 64}, COMPONENTS, {"text_config": PretrainedConfig(**COMPONENTS)})
        ),
    ],
)
def test_an_option_is_named(fields: dict[str, Any], injects_kv: bool, end: str) -> None:
    """With which the model works, and none where none is needed: nor for positions with several components."""
    fits, says = said(PretrainedConfig(**fields), injects_kv)
    assert fits and end in says and (end != "work with the plug-in" or says.endswith(end))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"sliding_window": 8}, "SlidingWindowSpec"),
        ({"layer_types": ["chunked_attention"]}, "ChunkedLocalAttentionSpec"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "MambaSpec"),
    ],
)
def test_what_cannot_be_injected_fails_only_then(fields: dict[str, Any], kind: str) -> None:
    """With the message of the engine, which also names a layer."""
    config = PretrainedConfig(**fields)
    assert said(config)[0]
    fits, says = said(config, injects_kv=True)
    assert not fits
    assert f"does not work with layers of the kind {kind}: they keep nothing for each token" in says


@pytest.mark.parametrize(
    ("fields", "told", "message"),
    [
        ({"is_encoder_decoder": True}, None, "model='a-model'; use a model without an encoder"),
        ({"architectures": ["BertForMaskedLM"]}, None, "runner='pooling'; use a model that generates"),
        ({"canvas_length": 8}, None, "model='a-model'; use a model that samples one token at a time"),
        ({}, {"is_encoder_decoder": True}, "model='a-model'; use a model without an encoder"),
        ({}, {"runner_type": "pooling"}, "runner='pooling'; use a model that generates"),
        ({}, {"is_diffusion": True}, "model='a-model'; use a model that samples one token at a time"),
    ],
)
def test_what_no_engine_takes_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fields: dict[str, Any], told: dict[str, Any] | None, message: str
) -> None:
    """By its fields or by vLLM's words, with the message of the engine."""
    if told is not None:
        beside(monkeypatch, tmp_path, **told)
    fits, says = said(PretrainedConfig(**fields))
    assert not fits and says.endswith(f"special_kwargs: sequence hooks do not work with {message}")


def test_what_it_cannot_tell_the_fields_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line says why."""
    beside(monkeypatch, tmp_path, error=ValueError("no such architecture"))
    assert said(PretrainedConfig(state_size=16))[1].startswith(
        "states (by config.json alone; vLLM cannot tell: no such architecture): work"
    )


@pytest.mark.parametrize("is_fork", [True, False])
def test_the_fork_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_fork: bool) -> None:
    """Nor is anything where no vLLM is installed."""
    beside(monkeypatch, tmp_path, error=AssertionError)
    (tmp_path / "_overlay.py").touch()
    if not is_fork:
        monkeypatch.setattr(layers, "find_spec", lambda _: None)
    assert "(by config.json alone):" in said(PretrainedConfig())[1]
