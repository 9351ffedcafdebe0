# SPDX-License-Identifier: Apache-2.0
"""Forks and joins on a real engine: the trees of a few requests, then accuracy, and how many steps they take.

Usage: `python examples/demo.py [--count 100]`
"""

import argparse
import os

from demo_screen import is_fork, screen

NAME, NEXT = ("demo", "make demo-plugin") if is_fork() else ("demo-plugin", "the same over HTTP, below")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=100, help="held-out prompts a mode")
    count = arguments.parse_args().count
    # The steps of an engine in this process can be counted.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with screen(NAME) as shown:
        with shown.working("Importing vLLM"):
            from demo_trees import show_all  # It warns, and takes many seconds.
        correct = show_all(shown, count)
        told = " and ".join(f"{share} of {count} ({mode})" for mode, share in correct.items())
        shown.end(f"children fork and join, and {told} prompts are answered exactly", NEXT)


if __name__ == "__main__":
    main()
