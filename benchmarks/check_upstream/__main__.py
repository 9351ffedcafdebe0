# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.check_upstream``: 64 greedy prompts, this fork against pristine upstream.

Pristine upstream runs only its plain path: on CPUs its chunked prefill and prefix caching need an
extension that no longer exists. Ours are compared with that plain path.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.check_upstream import worker
from benchmarks.check_upstream.compare import TIE, Comparison, compare
from benchmarks.check_upstream.pristine import ENVIRONMENT, make_environment
from benchmarks.check_upstream.workload import make_prompts, save_model

ROOT = Path(__file__).parents[2]
# Name, engine arguments, tolerance of a logprob, gap that counts as a tie.
CASES: list[tuple[str, dict[str, Any], float, float]] = [
    ("plain", {}, 1e-5, 0.0),
    ("chunked prefill", {"enable_chunked_prefill": True, "max_num_batched_tokens": 64}, 1e-3, TIE),
    ("prefix caching", {"enable_prefix_caching": True}, 1e-3, TIE),
]


def main() -> int:
    """Run all cases; the exit status is 1 if anything differs."""
    pristine = make_environment(ROOT / ".venv-upstream", (ROOT / "vllm" / "_upstream").resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model")
        expected = generate(pristine, folder, {})
        if not expected["pristine"]:
            print("error: the pristine environment has our overlay", file=sys.stderr)
            return 1
        print(f"reference: vllm {expected['version']}, {len(expected['sequences'])} prompts")
        results = {}
        for case, engine, tolerance, tie in CASES:
            actual = generate(Path(sys.executable), folder, engine)
            results[case] = compare(expected["sequences"], actual["sequences"], tolerance, tie)
            if engine.get("enable_prefix_caching") and actual["cache_hit_rate"] <= 0:
                results[case].mismatches.append("no block was found in the prefix cache")
    return report(results)


def generate(python: Path, folder: Path, engine: dict[str, Any]) -> dict[str, Any]:
    """What ``worker`` reports in the environment of ``python``; raises if the worker fails."""
    task, result = folder / "task.json", folder / "result.json"
    model = str(folder / "model")
    task.write_text(json.dumps({"model": model, "prompts": make_prompts(), "engine": engine}))
    subprocess.run(
        [python, worker.__file__, task, result],
        check=True,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.DEVNULL,
    )
    record: dict[str, Any] = json.loads(result.read_text())
    return record


def report(results: dict[str, Comparison]) -> int:
    """Print a line for each case, then the mismatches or OK; return the exit status."""
    print(f"{'this fork':<16} {'tokens':>7} {'ties':>5} {'logprobs off by':>16} {'mismatches':>11}")
    for case, result in results.items():
        numbers = f"{result.tokens:>7} {result.ties:>5} {result.largest:>16.1e}"
        print(f"{case:<16} {numbers} {len(result.mismatches):>11}")
    mismatches = [f"{case}: {line}" for case, found in results.items() for line in found.mismatches]
    print("\n".join(mismatches) or "OK")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
