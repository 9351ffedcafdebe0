# SPDX-License-Identifier: Apache-2.0
"""A real language model forks and joins: three questions, their trees, and how long they take beside a plain answer.

Usage: `python examples/demo_language.py MERGED_FOLDER [QUESTION ...] [--record RUN.jsonl]`
"""

import argparse
import os
from pathlib import Path

from demo_screen import screen

NEXT = (
    "cd examples; ../.venv-plugin/bin/vllm serve ../build/language/smollm2 --served-model-name chat --dtype float32 "
    "--enforce-eager --max-model-len 2048 --gpu-memory-utilization 0.3 "
    """--special-kwargs '{"protocol": "skeleton", "live_page": true}'"""
)
"""The model that was not taught anything answers by outlines, as the README shows."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="the folder that merge_language.py has written")
    parser.add_argument("questions", nargs="*", help="by default the first ones that no training row has")
    parser.add_argument(
        "--record", type=Path, metavar="RUN.jsonl", help="record the trees alone, for `sequence_hooks.trace`"
    )
    arguments = parser.parse_args()
    # The steps of an engine in this process can be counted.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with screen("demo-language") as shown:
        with shown.working("Importing vLLM"):
            from language_trees import show_all  # It warns, and takes many seconds.
        told = show_all(shown, arguments.model, arguments.questions, arguments.record)
        shown.end(told, NEXT)


if __name__ == "__main__":
    main()
