# SPDX-License-Identifier: Apache-2.0
"""The sides: which vLLM, with which engine arguments; each in a process that waits while the others run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.check_upstream.pristine import ENVIRONMENT, make_environment
from benchmarks.forkjoin.engine import Run, Step
from benchmarks.forkjoin.models import MAX_MODEL_LEN, Model
from benchmarks.forkjoin.plans import MAX_CHILDREN, PROMISE, Plan

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / ".venv-plugin" / "bin" / "python"
Environment = Literal["fork", "upstream", "plug-in"]
_HOOKS = {
    "handlers": [(PROMISE, "benchmarks.forkjoin.hooks.FanOut")],
    "max_children": MAX_CHILDREN,
    "max_child_depth": 4,
    "merge_separator": "",
}


@dataclass(frozen=True, eq=False)
class Kind:
    """Which vLLM an engine runs, and its arguments."""

    name: str
    environment: Environment = "fork"
    arguments: dict[str, Any] = field(default_factory=dict)


HOOKS = Kind("hooks, conditional prefill", arguments={"special_kwargs": _HOOKS})
_INJECTION = {**_HOOKS, "child_merge_strategy": "kv_inject"}
INJECTION = Kind("hooks, KV injection", arguments={"special_kwargs": _INJECTION})
OFF = Kind("hooks off")
AGAIN = Kind("hooks off, again")
"""A second process of the same kind, to see by how much two such processes differ."""

UPSTREAM = Kind("upstream 0.9.2", "upstream")
CACHING = Kind("hooks off, prefix caching", arguments={"enable_prefix_caching": True})
"""Stands in for upstream's prefix caching, which on CPUs needs an extension that no longer exists."""

KINDS = (HOOKS, INJECTION, OFF, UPSTREAM, CACHING)
_IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# The hook reads a request's id.
_VARIABLES = {
    "plug-in": {**_IN_PROCESS, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1", "VLLM_SERVER_DEV_MODE": "1"},
    "fork": {},
    "upstream": {},
}

_V1_BUDGET = {"max_num_batched_tokens": 4096}
"""About what upstream chooses by itself; on CPUs, steps of more tokens take longer than several smaller ones."""

PLUGIN_HOOKS = Kind("plug-in, conditional prefill", "plug-in", {"special_kwargs": _HOOKS, **_V1_BUDGET})
PLUGIN_INJECTION = Kind("plug-in, KV injection", "plug-in", {"special_kwargs": _INJECTION, **_V1_BUDGET})
STOCK = Kind("vLLM 0.32", "plug-in", _V1_BUDGET)
"""A stock vLLM whose engine has no hooks. It caches prefixes, as it does by default."""

STOCK_AGAIN = Kind("vLLM 0.32, again", "plug-in", _V1_BUDGET)


class Side:
    """A process with an engine."""

    def __init__(self, process: "subprocess.Popen[str]", kind: Kind, log: Path) -> None:
        self._process, self.kind, self._log = process, kind, log
        if self._read()["environment"] != kind.environment:
            raise RuntimeError(f"{kind.name}: its environment has the wrong vLLM")

    @property
    def pids(self) -> list[int]:
        """The processes that do its work."""
        return [self._process.pid]

    def run(self, way: str, plan: Plan, seed: int) -> Run:
        """Do the work of ``plan`` in one of `benchmarks.forkjoin.ways.WAYS`."""
        assert self._process.stdin is not None
        print(json.dumps({"way": way, "plan": asdict(plan), "seed": seed}), file=self._process.stdin, flush=True)
        answer = self._read()
        return Run(**{**answer, "steps": [Step(**step) for step in answer["steps"]]})

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text()[-4000:]
            raise RuntimeError(f"{self.kind.name}: the engine's process has ended; it said last:\n{said}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Workshop:
    """A folder with the models, and the environments of the sides.

    Args:
        kinds: Those that it will open.
        plugin: The interpreter of the plug-in's environment.
    """

    def __init__(self, folder: Path, kinds: Sequence[Kind] = KINDS, plugin: Path = PLUGIN) -> None:
        self.folder = folder
        # A worker's path contains the bench, but not the checkout with its vllm.
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        self._interpreters = {"fork": Path(sys.executable), "plug-in": plugin}
        if any(kind.environment == "upstream" for kind in kinds):
            upstream = (ROOT / "vllm" / "_upstream").resolve()
            self._interpreters["upstream"] = make_environment(folder / "upstream", upstream)

    @contextmanager
    def open(self, model: Model, *kinds: Kind, tell: Callable[[str], object] = str) -> Iterator[dict[Kind, Side]]:
        """Engines of all ``kinds`` at once; starting them takes a while, and ``tell`` is told which is waited for."""
        tell(f"{model.name}: preparing {len(kinds)} engines")
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    self.started(
                        kind,
                        *("-m", "benchmarks.forkjoin.worker", json.dumps(self.arguments(model, kind))),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                )
                for kind in kinds
            ]
            sides: dict[Kind, Side] = {}
            for kind, process in zip(kinds, processes, strict=True):
                tell(f"{model.name}: starting {kind.name}, engine {len(sides) + 1} of {len(kinds)}")
                sides[kind] = Side(process, kind, self._log(kind))
            yield sides

    def arguments(self, model: Model, kind: Kind) -> dict[str, Any]:
        """The arguments of an engine; the model is made when it is first needed."""
        path = self.folder / model.name
        if not path.exists():
            model.save(self.folder)
        return {
            "model": str(path),
            "dtype": model.dtype,
            "max_model_len": MAX_MODEL_LEN,
            # A prompt takes one step, also on a side without chunked prefill.
            "max_num_batched_tokens": MAX_MODEL_LEN,
            "max_num_seqs": 256,
            **kind.arguments,
        }

    @contextmanager
    def started(self, kind: Kind, *command: str, **streams: Any) -> Iterator["subprocess.Popen[str]"]:
        """A Python process in the environment of ``kind``, which runs until the block ends."""
        variables = {**os.environ, **ENVIRONMENT, **_VARIABLES[kind.environment], "PYTHONPATH": str(self.folder)}
        with (
            self._log(kind).open("w") as log,
            subprocess.Popen(
                [self._interpreters[kind.environment], *command],
                stderr=log,
                text=True,
                cwd=self.folder,
                env=variables,
                **{"stdout": log, **streams},
            ) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()

    def _log(self, kind: Kind) -> Path:
        return self.folder / f"{kind.name}.log"
