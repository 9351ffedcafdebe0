# SPDX-License-Identifier: Apache-2.0
"""What `kv_inject` refuses when an engine is created; the error names it and the way out."""

from pathlib import Path
from typing import Any

import pytest
from transformers import BloomConfig, GPT2Config, MptConfig, OPTConfig, PretrainedConfig

from mytests.fuzz.model import model_folder
from vllm import LLM
from vllm.config import SpecialKwargs
from vllm.model_executor.models import registry

pytestmark = pytest.mark.model

INJECT = SpecialKwargs(promise_token_id=3, child_merge_strategy="kv_inject", merge_separator="")
WAY_OUT = "use 'concatenate'"
TINY = {"vocab_size": 64, "n_layer": 1, "n_head": 2}
OPT = {"vocab_size": 64, "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 64, "num_hidden_layers": 1}
MODELS: dict[str, tuple[PretrainedConfig, str]] = {
    "GPT2LMHeadModel": (GPT2Config(**TINY, n_embd=64), "layers without rotary embeddings"),
    "OPTForCausalLM": (OPTConfig(**OPT, num_attention_heads=2), "layers without rotary embeddings"),
    "MPTForCausalLM": (MptConfig(vocab_size=64, d_model=64, n_heads=2, n_layers=1), "ALiBi"),
    "BloomForCausalLM": (BloomConfig(**TINY, hidden_size=64), "ALiBi"),
}


def open_engine(model: Path, **engine_args: Any) -> LLM:
    """An engine with random weights."""
    fields = {"load_format": "dummy", "enforce_eager": True, "max_model_len": 128, "skip_tokenizer_init": True}
    return LLM(str(model), special_kwargs=INJECT, **{"dtype": "float32", **fields, **engine_args})


@pytest.fixture(autouse=True)
def models_are_looked_at_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect models in this process: a process for each takes ten seconds."""
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda look: look())


@pytest.mark.parametrize("architecture", MODELS)
def test_models_whose_keys_are_not_rotated(architecture: str, tmp_path: Path) -> None:
    """Without rotated keys, positions in the KV cannot be changed, so the model is refused."""
    config, named = MODELS[architecture]
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=named) as raised:
        open_engine(tmp_path)
    assert WAY_OUT in str(raised.value)


def test_a_quantized_cache() -> None:
    """On the CPU upstream refuses it first, for any prefill that has context."""
    with pytest.raises(RuntimeError, match="not compatible with FP8 KV cache"):
        open_engine(model_folder(), kv_cache_dtype="fp8")


@pytest.mark.parametrize("strategy", ["concatenate", "none"])
def test_a_position_rule_without_injection(strategy: str) -> None:
    """It is refused, also if the hooks are given as a dict."""
    with pytest.raises(ValueError, match=r"position_rule is 'overlap'; .*child_merge_strategy='kv_inject'"):
        SpecialKwargs(promise_token_id=3, child_merge_strategy=strategy, position_rule="overlap")
    with pytest.raises(ValueError, match=r"position_rule is 'overlap'; "):
        LLM(str(model_folder()), special_kwargs={"promise_token_id": 3, "position_rule": "overlap"})
