# SPDX-License-Identifier: Apache-2.0
"""Drafters for the tiny model, as the arguments of an engine: random weights, in upstream's formats.

Random drafts are hardly ever right. So EAGLE's layer and that of multi-token prediction (MTP) are small beside a linear
map of a token to the one that follows it most often. EAGLE-3 has no such map, as its layer alone sees the last token.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from forkjoin_engine import MODEL_FOLDER
from forkjoin_task import MODES, expected_output, held_out_prompts
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

Tensors = dict[str, torch.Tensor]

_SMALL = 0.05


def eagle(folder: Path) -> dict[str, Any]:
    """EAGLE: a layer of its own after the model's."""
    config = _config(num_hidden_layers=1)
    weights, size = _layer("layers.0", config), config["hidden_size"]
    del weights["layers.0.input_layernorm.weight"]
    weights["fc.weight"] = torch.cat([_map_to_next(config, is_scaled=False), torch.zeros(size, size)], dim=1)
    return _drafting("eagle", model=_saved(folder, config, weights))


def eagle3(folder: Path) -> dict[str, Any]:
    """EAGLE-3: its layer sees what three of the model's give."""
    fields = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    config = _config(num_hidden_layers=1, draft_vocab_size=_config()["vocab_size"], **fields)
    size = config["hidden_size"]
    weights = _layer("midlayer", config, num_inputs=2)
    weights |= {"midlayer.hidden_norm.weight": torch.ones(size), "norm.weight": torch.ones(size)}
    weights |= {"fc.weight": _random(size, 3 * size), "lm_head.weight": _random(config["vocab_size"], size)}
    return _drafting("eagle3", model=_saved(folder, config, weights))


def mtp(folder: Path) -> dict[str, Any]:
    """The tiny model as a MiMo, which has a layer for multi-token prediction beside its own."""
    fields = {"model_type": "qwen2", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    config = _config(tie_word_embeddings=False, **fields)
    size, name = config["hidden_size"], "model.mtp_layers.0"
    weights = load_file(MODEL_FOLDER / "model.safetensors") | _layer(name, config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    weights |= {f"{name}.{norm}.weight": torch.ones(size) for norm in norms}
    weights[f"{name}.input_proj.weight"] = torch.cat(
        [torch.zeros(size, size), _map_to_next(config, is_scaled=True)], dim=1
    )
    # This architecture adds to queries, keys and values, and the model does not.
    projections = [key.removesuffix(".weight") for key in weights if key.endswith(("q_proj.weight", "v_proj.weight"))]
    projections += [key.removesuffix(".weight") for key in weights if key.endswith("k_proj.weight")]
    weights |= {f"{each}.bias": torch.zeros(len(weights[f"{each}.weight"])) for each in projections}
    return _drafting("mtp") | {"model": _saved(folder, config, weights), "tokenizer": str(MODEL_FOLDER)}


DRAFTERS: Mapping[str, Callable[[Path], dict[str, Any]]] = {"eagle": eagle, "eagle3": eagle3, "mtp": mtp}
"""Each writes its weights into a folder."""


def _drafting(method: str, **fields: Any) -> dict[str, Any]:
    return {"speculative_config": {"method": method, "num_speculative_tokens": 3, **fields}}


def _config(**fields: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MODEL_FOLDER / "config.json").read_text())
    return config | fields


def _saved(folder: Path, config: Mapping[str, Any], weights: Tensors) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return str(folder)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 0.1


def _layer(name: str, config: Mapping[str, Any], num_inputs: int = 1) -> Tensors:
    """The weights of a layer whose attention sees ``num_inputs`` vectors of each token."""
    size, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {
        "self_attn.q_proj": (heads, num_inputs * size),
        "self_attn.k_proj": (kv_heads, num_inputs * size),
        "self_attn.v_proj": (kv_heads, num_inputs * size),
        "mlp.gate_proj": (inner, size),
        "mlp.up_proj": (inner, size),
    }
    weights = {f"{name}.{each}.weight": _random(*shape) for each, shape in shapes.items()}
    weights |= {f"{name}.self_attn.o_proj.weight": _SMALL * _random(size, heads)}
    weights |= {f"{name}.mlp.down_proj.weight": _SMALL * _random(size, inner)}
    norms = ("input_layernorm", "post_attention_layernorm")
    return weights | {f"{name}.{norm}.weight": torch.ones(size) for norm in norms}


def _map_to_next(config: Mapping[str, Any], is_scaled: bool) -> torch.Tensor:
    """Maps the embedding of a token, which may be in the layers' norm, to the one that mostly follows it."""
    embeddings = load_file(MODEL_FOLDER / "model.safetensors")["model.embed_tokens.weight"]
    given = torch.nn.functional.rms_norm(embeddings, embeddings.shape[1:], eps=1e-6) if is_scaled else embeddings
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    pairs = Counter[tuple[int, int]]()
    for prompt in (prompt for mode in MODES for prompt in held_out_prompts(50, 3, mode)):
        pairs.update(pairwise(tokenizer.encode(expected_output(prompt), add_special_tokens=False)))
    following = {token: after for (token, after), _ in reversed(pairs.most_common())}
    wanted = embeddings[[following.get(token, token) for token in range(config["vocab_size"])]]
    to_next: torch.Tensor = torch.linalg.pinv(given) @ wanted
    return to_next.T.contiguous()
