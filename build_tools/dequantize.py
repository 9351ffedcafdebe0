# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.dequantize FILE FOLDER``: a quantized model as a folder that vLLM loads.

transformers does the work. What its newer releases write into a configuration, and older ones do not read, is written
in both ways here: the fork's transformers is of another major version.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_DTYPE = "torch_dtype" if Version(transformers.__version__) < Version("5") else "dtype"


def main() -> int:
    """Exit status."""
    quantized, folder = map(Path, sys.argv[1:])
    dequantize(quantized, folder)
    return 0


def dequantize(quantized: Path, folder: Path) -> None:
    """Write weights in float32, configuration and tokenizer of the model in the file ``quantized``."""
    source, dtype = {"gguf_file": quantized.name}, {_DTYPE: torch.float32}
    tokenizer = AutoTokenizer.from_pretrained(quantized.parent, **source)
    model: Any = AutoModelForCausalLM.from_pretrained(quantized.parent, **source, **dtype)
    # What is saved as the head would be a copy of the embeddings.
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: each.contiguous() for name, each in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", _configuration(model.config.to_diff_dict(), type(model).__name__))
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _complete_tokenizer(folder, tokenizer.chat_template)


def _configuration(given: dict[str, Any], architecture: str) -> dict[str, Any]:
    left_out = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version")
    kept = {name: value for name, value in given.items() if name not in left_out}
    rotary = given.get("rope_parameters") or {}
    base = rotary.get("rope_theta", given.get("rope_theta"))
    # Layers of several kinds have rotary embeddings of their own, which older releases do not read at all.
    own = {} if base is None else {"rope_theta": base}
    return kept | {"architectures": [architecture], "torch_dtype": "float32", "dtype": "float32"} | own


def _complete_tokenizer(folder: Path, chat_template: str | None) -> None:
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text())
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    # Older releases leave none but these and the named ones out of texts.
    others = [each["content"] for each in added if each["special"] and each["content"] not in fields.values()]
    own = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": chat_template}
    _write(path, fields | own | {"additional_special_tokens": others})


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
