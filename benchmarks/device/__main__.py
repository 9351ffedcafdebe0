# SPDX-License-Identifier: Apache-2.0
"""Hooks on a device against a client and against decoding in sequence: `make bench-device`.

Each side has a process of its own, one after the other. Each run is written to ``rows.jsonl`` as soon as it is there,
and the page anew, so that a run that is cut off is worth what it has. ``--tiny`` runs all sides with a tiny model.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Timer

# Steps are counted where requests are made, and a CPU needs no more than this.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from benchmarks.counts import positive
from benchmarks.device.bandwidth import here
from benchmarks.device.bundle import install
from benchmarks.device.page import write_page
from benchmarks.device.plan import FULL, QUICK, Side, Suite
from benchmarks.device.shapes import MEASURED, Shape
from benchmarks.device.side import Row, Task

ROOT = Path(__file__).resolve().parents[2]
LEAST_SECONDS = 60
"""What a side gets at least: with less, a large model's engine would hardly have started."""


def main() -> None:
    """Measure, and print the page and its path."""
    arguments = _arguments()
    if arguments.install is not None:
        install(arguments.install)
    suite = QUICK if arguments.tiny else FULL
    series = [(shape, side) for shape, side in suite.series if arguments.models in (None, shape.name)]
    end = time.monotonic() + (arguments.seconds or suite.seconds)
    arguments.output.mkdir(parents=True, exist_ok=True)
    page, device = arguments.output / "benchmarks-device.md", here()
    rows: list[Row] = []
    failures: dict[str, str] = {}
    contexts = _contexts(arguments.tiny)
    with (arguments.output / "rows.jsonl").open("w") as saved, tempfile.TemporaryDirectory() as folder:
        for index, (shape, side) in enumerate(series):
            name, left = f"{shape.name}, {side.name}", end - time.monotonic()
            seconds = min(left, max(LEAST_SECONDS, left / (len(series) - index)))
            print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
            try:
                for row in _measured(suite, shape, side, seconds, left, arguments.output, Path(folder)):
                    rows.append(row)
                    print(json.dumps(asdict(row)), file=saved, flush=True)
            except RuntimeError as error:
                failures[name] = str(error)
            page.write_text(write_page(rows, failures, suite.child_tokens, device, contexts))
    print(page.read_text())
    print(page)
    if not rows or (arguments.tiny and failures):
        sys.exit("not all could be measured")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, two minutes on a CPU; fails if a side does")
    parser.add_argument("--models", choices=[shape.name for shape in MEASURED], help="measure one of the models only")
    parser.add_argument("--seconds", type=positive, help="the time for all of it")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-device", help="folder to write into")
    parser.add_argument(
        "--install", type=Path, metavar="FOLDER", help="install the wheels of `make device-bundle` first"
    )
    return parser.parse_args()


def _contexts(is_tiny: bool) -> str:
    """What contexts read once would gain, by bytes and in attention alone."""
    command = [sys.executable, "-m", "benchmarks.device.contexts", *(["--tiny"] if is_tiny else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    fault = f"\n\nAttention was not measured: status {done.returncode}." if done.returncode else ""
    return done.stdout.strip() + fault


def _measured(
    suite: Suite, shape: Shape, side: Side, seconds: float, left: float, output: Path, folder: Path
) -> Iterator[Row]:
    """The runs of one side, as they come.

    Args:
        seconds: After them no run begins.
        left: After them the side's process is killed.

    Raises:
        RuntimeError: the process has failed, or was killed; the message says where its log is.
    """
    path, log = folder / shape.name, output / f"{shape.name} {side.name}.log"
    if left <= 0:
        raise RuntimeError("no time was left")
    if not path.exists():
        shape.save(folder, suite.child_tokens)
    names = (shape.name, side.name, str(path))
    task = Task(*names, tuple(suite.cells), suite.child_tokens, suite.rounds, seconds, suite.arguments)
    command = [sys.executable, "-m", "benchmarks.device.side", json.dumps(asdict(task))]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) as process,
    ):
        assert process.stdout is not None
        timer = Timer(left, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            yield from map(Row.of, process.stdout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            timer.cancel()
    if process.returncode:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        why = "its time was over" if process.returncode == -signal.SIGKILL else lines[-1] if lines else "no message"
        raise RuntimeError(f"{why} ({log})")


if __name__ == "__main__":
    main()
