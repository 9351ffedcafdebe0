# SPDX-License-Identifier: Apache-2.0
"""Do the fork and the plug-in do the same? Whole trees, token for token, on held-out prompts, for all ways to merge.

Usage: `python examples/agreement.py answer ANSWERS.json [--count 500]`, once with each vLLM, then
`python examples/agreement.py compare ONE.json OTHER.json`; `make agreement` does all of it. With `--language MODEL` it
is the language model that answers, held-out questions: `make agreement-language`. ``agreement.json`` has the fork's
`digests`, with which a device's trees are compared, where there is no fork: `make test-device`.
"""

import argparse
import gc
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from forkjoin_engine import GREEDY, hooks_for, open_engine
from forkjoin_task import MODES, Mode, held_out_prompts
from language_engine import ask, open_language_engine
from language_task import questions

from sequence_hooks.results import ChildOutput, Join, Segment
from vllm import RequestOutput

SEED = 1
RECORDED = Path(__file__).parent / "agreement.json"
INJECTION = {"child_merge_strategy": "kv_inject"}
WAYS: dict[str, tuple[Mode, dict[str, str]]] = {
    **{f'block_on="{mode}"': (mode, {}) for mode in MODES},
    **{f'block_on="{mode}", injected': (mode, INJECTION) for mode in MODES},
    **{f'block_on="{mode}", injected, overlapping': (mode, INJECTION | {"position_rule": "overlap"}) for mode in MODES},
}
"""The modes and merges that are compared, by what is printed of them."""

Record = dict[str, Any]
"""Plain values; positions and counts are tokens."""


def main() -> int:
    """Exit status: 1 if two files of answers differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    answer = commands.add_parser("answer")
    answer.add_argument("file", type=Path)
    answer.add_argument("--count", type=int, default=500, help="held-out prompts a way")
    answer.add_argument("--language", type=Path, metavar="MODEL", help="the folder that merge_language.py has written")
    commands.add_parser("compare").add_argument("files", type=Path, nargs=2)
    arguments = parser.parse_args()
    if arguments.command == "answer":
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        given = arguments.language
        records = all_answers(arguments.count) if given is None else language_answers(given, arguments.count)
        arguments.file.write_text(json.dumps(records))
        return 0
    return report(*(json.loads(file.read_text()) for file in arguments.files))


def all_answers(count: int) -> dict[str, list[Record]]:
    """What this environment's vLLM answers to ``count`` prompts in each of `WAYS`."""
    records: dict[str, list[Record]] = {}
    for name, (mode, fields) in WAYS.items():
        engine = open_engine(hooks_for(mode, **fields), gpu_memory_utilization=0.3)
        outputs = engine.generate(held_out_prompts(count, SEED, mode), GREEDY, use_tqdm=False)
        records[name] = [record_of(output) for output in outputs]
        # An engine in this process takes down what the next one would have set up.
        del engine
        gc.collect()
    return records


def digests(records: dict[str, list[Record]]) -> dict[str, list[str]]:
    """Eight digits for each tree, by which one can be told from another where the trees themselves are not at hand."""
    return {
        way: [hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:8] for record in of_way]
        for way, of_way in records.items()
    }


def recorded() -> dict[str, list[str]]:
    """The `digests` of the fork's trees, on a CPU."""
    digests_by_way: dict[str, list[str]] = json.loads(RECORDED.read_text())
    return digests_by_way


def differing(records: dict[str, list[Record]], known: dict[str, list[str]]) -> list[tuple[str, int]]:
    """The ways and the numbers of the prompts whose trees are not ``known``."""
    return [
        (way, number)
        for way, of_way in digests(records).items()
        for number, digest in enumerate(of_way)
        if known[way][number] != digest
    ]


def language_answers(model: Path, count: int) -> dict[str, list[Record]]:
    """What this environment's vLLM answers to ``count`` held-out questions with the language model."""
    outputs = ask(open_language_engine(model), questions("held-out")[:count])
    return {"the language model": [record_of(output) for output in outputs]}


def record_of(output: RequestOutput) -> Record:
    """A finished request with its tree."""
    (completion,) = output.outputs
    return {
        "prompt": output.prompt,
        "tokens": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        **_tree(completion.children, completion.segments, completion.joins),
    }


def _tree(children: Sequence[ChildOutput], segments: Sequence[Segment], joins: Sequence[Join]) -> Record:
    return {
        "children": [_child(each) for each in children],
        "segments": [[each.start, each.end, each.origin, each.child] for each in segments],
        "joins": [vars(each) for each in joins],
    }


def _child(child: ChildOutput) -> Record:
    return {
        "position": child.spawn_position,
        "prefix": list(child.prefix_token_ids),
        "tokens": list(child.token_ids),
        "result": list(child.result_token_ids),
        "finish_reason": child.finish_reason,
        **_tree(child.children, child.segments, child.joins),
    }


def report(one: dict[str, list[Record]], other: dict[str, list[Record]]) -> int:
    """Print a line for each way, and its first difference; return the exit status."""
    differs = one.keys() != other.keys()
    for way in (way for way in one if way in other):
        pairs = list(zip_longest(one[way], other[way]))
        places = [(number, next(differences(left, right), None)) for number, (left, right) in enumerate(pairs)]
        different = [(number, place) for number, place in places if place is not None]
        print(f"{way}: {len(pairs)} prompts, {len(pairs) - len(different)} identical; {_counts(one[way])}")
        if different:
            print("first difference: prompt {}, {}".format(*different[0]))
        differs = differs or bool(different)
    return int(differs)


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two plain values differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for name in one:
            yield from differences(one[name], other[name], f"{place}.{name}" if place else name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}[{index}]")
    elif one != other:
        yield f"{place or 'answer'}: {one} and {other}"


def _counts(records: Sequence[Record]) -> str:
    tokens = sum(len(record["tokens"]) for record in records)
    children = [child for record in records for child in record["children"]]
    joins = [join for record in records for join in record["joins"]]
    return f"{tokens} output tokens, {len(children)} children, {len(joins)} joins"


if __name__ == "__main__":
    sys.exit(main())
