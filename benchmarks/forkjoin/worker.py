# SPDX-License-Identifier: Apache-2.0
"""One side's engine in its own process: it gets each task as a line of JSON, and answers with one.

Started as ``python -m benchmarks.forkjoin.worker ENGINE_ARGUMENTS`` in the environment of its side.
"""

import json
import os
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from benchmarks.forkjoin.engine import Observed
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.ways import WAYS

IS_V1 = find_spec("vllm.v1.core.sched.async_scheduler") is not None


def main() -> None:
    """Answer until there is no more input."""
    # Whatever else is written to standard output must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = _engine(json.loads(sys.argv[1]))
    environment = "plug-in" if IS_V1 else "upstream" if find_spec("vllm._overlay") is None else "fork"
    ready = {"environment": environment}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        plan = Plan(**{**task["plan"], "lengths": tuple(task["plan"]["lengths"])})
        run = WAYS[task["way"]](engine, plan, task["seed"])
        print(json.dumps(asdict(run)), file=answers, flush=True)


def _engine(arguments: dict[str, Any]) -> Observed:
    if IS_V1:
        from benchmarks.forkjoin.engine_v1 import V1Engine

        return V1Engine(arguments)
    from benchmarks.forkjoin.engine_v0 import V0Engine

    return V0Engine(arguments)


if __name__ == "__main__":
    main()
