# SPDX-License-Identifier: Apache-2.0
"""Trees and speculative decoding, alone and together: `make bench-speculation`.

Counts steps and tokens, which no machine changes, and writes a page. Each engine has a process of its own: where
upstream has looked for n-grams, it can open no other engine on a CPU.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

# Processes and engines inherit it: steps are counted where requests are made.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from benchmarks.counts import positive
from benchmarks.speculation.measure import DRAFTERS, Counts, Subject, measured
from benchmarks.speculation.page import write_page

SIZES = (1, 4, 16)


def main() -> None:
    """Measure, write the page, and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", type=Path, help="the folder that `make merge-language` makes")
    parser.add_argument("--groups", type=positive, default=16, help="at most so many groups of each size")
    parser.add_argument("--page", type=Path, default=Path("build/bench-speculation.md"), help="the file to write")
    options = parser.parse_args()
    subjects = [hpd(options.groups)]
    if options.language is not None:
        subjects.append(language(options.language))
    options.page.parent.mkdir(parents=True, exist_ok=True)
    counts: list[Counts] = []
    for subject in subjects:
        for drafter in DRAFTERS:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                counts += process.submit(measured, subject, drafter, SIZES).result()
            # Whoever interrupts a run has what was measured before.
            options.page.write_text(write_page(counts))
            print(f"{subject.name}, drafts: {drafter}", file=sys.stderr, flush=True)
    print(options.page)


def hpd(most_groups: int) -> Subject:
    """The tiny model of HPD-Parsing's notation: a list is sampled, and each of its entries beside it."""
    from forkjoin_task import EOS
    from notations import NOTATIONS
    from transformers import AutoTokenizer

    notation = NOTATIONS["hpd"]
    tokenizer = AutoTokenizer.from_pretrained(notation.model_folder)
    prompts = (tokenizer.encode(each) for each in notation.held_out_prompts(max(SIZES), seed=1))
    fork, end = tokenizer.convert_tokens_to_ids(["<FORK>", EOS])
    return Subject(
        "forkjoin-hpd",
        notation.model_folder,
        {"protocol": "hpd"},
        tuple(map(tuple, prompts)),
        max_tokens=200,
        max_model_len=512,
        most_groups=most_groups,
        fork_and_end=(fork, end),
    )


def language(folder: Path) -> Subject:
    """The language model that answers by points, which are expanded side by side and then summed up."""
    from language_task import HOOKS, chat, questions
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [chat(each, tokenizer) for each in questions("held-out")[: max(SIZES)]]
    prompts = tuple(tuple(tokenizer.encode(each, add_special_tokens=False)) for each in texts)
    return Subject("forkjoin-language", folder, HOOKS, prompts, max_tokens=400, max_model_len=1536, most_groups=1)


if __name__ == "__main__":
    main()
