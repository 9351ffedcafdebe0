# SPDX-License-Identifier: Apache-2.0
"""Tiny models of other architectures than the Llama's, with random weights, whose best token stands clear.

Each has several layers of each of its kinds, windows that are shorter than the contexts of the tests, and states
smaller than the keys and values of a block, or larger.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.check_upstream.workload import VOCABULARY

LLAMA = "llama"
WINDOW = 8
_SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ALTERNATING: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

FIELDS: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"num_hidden_layers": 2},
    "gemma3_text": {**_ALTERNATING, "query_pre_attn_scalar": 32},
    "gpt_oss": {**_ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 4},
    "qwen3_moe": {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64},
    "glm4": {"num_hidden_layers": 2, "partial_rotary_factor": 0.5},
    # In the four that follow upstream runs transformers' own code, from 0.32 on.
    "phi": {"num_hidden_layers": 2, "partial_rotary_factor": 0.5, "num_key_value_heads": 4},
    "olmo2": {"num_hidden_layers": 2},
    "olmo3": {**_ALTERNATING},
    "glm": {"num_hidden_layers": 2, "partial_rotary_factor": 0.5},
    "stablelm": {"num_hidden_layers": 2, "partial_rotary_factor": 0.25},
    "exaone4": {
        "num_hidden_layers": 8,
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LLLG",
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    },
    "llama4_text": {
        "num_hidden_layers": 8,
        "no_rope_layers": [1, 1, 1, 0] * 2,
        "attention_chunk_size": 4 * WINDOW,
        "intermediate_size_mlp": 256,
        "num_local_experts": 2,
        "moe_layers": [],
        "interleave_moe_layer_step": 0,
    },
    "minicpm3": {
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
    },
    "deepseek_v3": {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "num_key_value_heads": 4,
        # Upstream's kernel for CPUs takes a latent vector of this size alone, and so many rotated elements.
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "head_dim": 64,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
    },
    "mistral": {"num_hidden_layers": 2, "sliding_window": WINDOW},
    "mamba2": {
        "num_hidden_layers": 2,
        "num_heads": 8,
        "head_dim": 32,
        "state_size": 16,
        "expand": 2,
        "n_groups": 1,
        **dict.fromkeys(("intermediate_size", "num_attention_heads", "num_key_value_heads")),
    },
    "falcon_h1": {
        "num_hidden_layers": 3,
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        # A smaller state than the keys and values of a block.
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_d_ssm": 256,
    },
    "lfm2": {
        "num_hidden_layers": 6,
        "layer_types": ["conv", "full_attention", "full_attention", "conv", "conv", "conv"],
        "block_auto_adjust_ff_dim": False,
        # Upstream reads these two, which published models have.
        **dict.fromkeys(("conv_dim", "block_dim"), 128),
    },
    "qwen3_next": {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        # Upstream's gated delta nets take these dimensions alone on CPUs, and bfloat16.
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "head_dim": 64,
        "num_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        # With wider weights bfloat16's rounding, which depends on the processor, would change its best token.
        "initializer_range": 0.05,
    },
    "granitemoehybrid": {
        "num_hidden_layers": 6,
        "layer_types": ["mamba", "mamba", "attention"] * 2,
        "position_embedding_type": "rope",
        "mamba_n_heads": 8,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "mamba_n_groups": 1,
        "num_local_experts": 0,
        "shared_intermediate_size": 128,
    },
}
"""The fields of each architecture, by its name in transformers.

Each token takes all experts that there are: a choice among them would depend on rounding, and so on the processor.
"""

STATES = ("granitemoehybrid", "falcon_h1", "mamba2", "lfm2", "qwen3_next")
"""Those with layers whose state each token overwrites."""

MORE_BLOCKS: Mapping[str, int] = {
    **dict.fromkeys(("gemma3_text", "gpt_oss"), 8),
    "mistral": 1,
    # Three groups of its layers have a window, and blocks of their own each, for the tokens of two steps.
    "exaone4": 24,
    # Of two groups, each with three states: upstream needs as many with steps in flight, and does not ask for them.
    **dict.fromkeys(STATES, 6),
}
"""Blocks that a sequence may need besides those of its context: of windows and a step's tokens, or of states."""


def config_of(architecture: str) -> Any:
    """The configuration of a model of an architecture of `FIELDS`, with the name of its class."""
    fields = {name: value for name, value in {**_SIZES, **FIELDS[architecture]}.items() if value is not None}
    return AutoConfig.for_model(architecture, architectures=[MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[architecture]], **fields)


def save_random(architecture: str, folder: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(architecture))
    with torch.no_grad():
        if model.config.tie_word_embeddings:
            # With wide embeddings that are also its head, it would only say again what it has read last.
            model.get_input_embeddings().weight.mul_(0.1)
            norm = getattr(model.model, "norm", None) or model.model.embedding_norm
            norm.weight.add_(9.0)
        model.get_output_embeddings().weight.mul_(_SIZES["initializer_range"] / model.config.initializer_range)
    model.save_pretrained(folder)
