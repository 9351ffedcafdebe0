# SPDX-License-Identifier: Apache-2.0
"""One side's engine in its own process: it gets each task as a line of JSON, and answers with one.

Started as ``python -m benchmarks.forkjoin.worker ENGINE_ARGUMENTS`` in the environment of its side.
"""

import json
import os
import sys
from dataclasses import asdict
from importlib.util import find_spec

from benchmarks.forkjoin.engine import Observed
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.ways import WAYS


def main() -> None:
    """Answer until there is no more input."""
    # Whatever else is written to standard output must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = Observed(json.loads(sys.argv[1]))
    ready = {"pristine": find_spec("vllm._overlay") is None}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        plan = Plan(**{**task["plan"], "lengths": tuple(task["plan"]["lengths"])})
        run = WAYS[task["way"]](engine, plan, task["seed"])
        print(json.dumps(asdict(run)), file=answers, flush=True)


if __name__ == "__main__":
    main()
