# SPDX-License-Identifier: Apache-2.0
"""Merges the adapter of the language model into its base, for engines without LoRA: a folder that both engines load.

Usage: `python examples/merge_language.py MODEL_FOLDER OUTPUT_FOLDER [--adapter FOLDER]`
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

WEIGHTS = "model.safetensors"
ADAPTER = Path(__file__).parent / "forkjoin-language" / "adapter"


def merge(base: Path, adapter: Path, output: Path) -> None:
    """Write the base model with the adapter added to its weights, in float32; the other files are the base's."""
    settings = json.loads((adapter / "adapter_config.json").read_text())
    scale = settings["lora_alpha"] / settings["r"]
    weights, updates = load_file(base / WEIGHTS), load_file(adapter / "adapter_model.safetensors")
    for name in tqdm([name for name in updates if name.endswith("lora_A.weight")], unit="matrix"):
        down, up = updates[name].float(), updates[name.replace("lora_A", "lora_B")].float()
        weights[_base_name(name)] += scale * (up @ down)
    output.mkdir(parents=True, exist_ok=True)
    for file in base.iterdir():
        if file.name != WEIGHTS:
            shutil.copy(file, output / file.name)
    save_file({name: weight.to(torch.float32) for name, weight in weights.items()}, output / WEIGHTS, {"format": "pt"})


def _base_name(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".lora_A", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path, help="the link that `make language-model` prints")
    parser.add_argument("output", type=Path, help="the merged model's folder")
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    arguments = parser.parse_args()
    merge(arguments.base, arguments.adapter, arguments.output)


if __name__ == "__main__":
    main()
