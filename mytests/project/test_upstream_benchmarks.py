# SPDX-License-Identifier: Apache-2.0
"""Upstream's own benchmarks, unchanged, with ``--special-kwargs``: the command line's, and the archive's scripts."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for

from benchmarks.forkjoin.models import Model
from build_tools.cache import user_cache
from build_tools.fetch import fetch
from build_tools.release import SDIST
from mytests.harness.servers import API_SERVER, CLI, EAGER, model_args, server

pytestmark = [pytest.mark.model, pytest.mark.full]

MODEL = ["--model", str(MODEL_FOLDER)]
HOOKS = ["--special-kwargs", json.dumps(vars(hooks_for("sync")))]
ENGINE = [*MODEL, *model_args(), EAGER, *HOOKS]
THROUGHPUT = [*ENGINE, "--num-prompts", "3", "--input-len", "16", "--output-len", "8"]
WIDE_HOOKS = ["--special-kwargs", '{"promise_token_id": 3, "sync_token_id": 4}']
LATENCY = [*model_args(), EAGER, *WIDE_HOOKS, "--batch-size", "2", "--input-len", "16", "--output-len", "8"]
LATENCY += ["--num-iters-warmup", "1", "--num-iters", "1"]
PREFIXES = "--enable-prefix-caching --num-prompts 2 --input-length-range 16:32 --prefix-len 16"
OTHERS = [
    ("prefix_caching", f"{PREFIXES} --repeat-count 1 --output-len 8", "cost time"),
    ("prioritization", "--scheduling-policy priority --num-prompts 3 --input-len 16 --output-len 8", "Throughput"),
    ("long_document_qa_throughput", "--num-documents 2 --document-length 32 --output-len 8 --repeat-count 1", "Time"),
]
RANDOM = ["--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "8", "--num-prompts", "3"]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder ``benchmarks`` of upstream's source archive."""
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(fetch(SDIST, user_cache())) as archive:
        members = [member for member in archive.getmembers() if member.name.split("/")[1:2] == ["benchmarks"]]
        archive.extractall(folder, members, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked / "benchmarks"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model with a vocabulary of 10,000 tokens: upstream's latency benchmarks draw from as many."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Model("wide", "float32", {"vocab_size": 10000, **sizes})
    return ["--model", str(model.save(tmp_path_factory.mktemp("models")))]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server with hooks."""
    with server(*API_SERVER, str(MODEL_FOLDER), *HOOKS, use_v1="0") as found:
        yield found


def run(*arguments: str, folder: Path) -> str:
    """What a command prints when run in ``folder``; it must succeed."""
    environment = os.environ | {"VLLM_USE_V1": "0"}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


class TestCommands:
    def test_throughput(self, tmp_path: Path) -> None:
        """`vllm bench throughput` runs with hooks."""
        run(*CLI, "bench", "throughput", *THROUGHPUT, "--output-json", "report.json", folder=tmp_path)
        assert json.loads((tmp_path / "report.json").read_text())["num_requests"] == 3

    def test_latency(self, wide: list[str], tmp_path: Path) -> None:
        """`vllm bench latency` runs with hooks."""
        run(*CLI, "bench", "latency", *wide, *LATENCY, "--output-json", "report.json", folder=tmp_path)
        assert json.loads((tmp_path / "report.json").read_text())["avg_latency"] > 0

    def test_serve(self, address: str, tmp_path: Path) -> None:
        """`vllm bench serve` runs against a server with hooks."""
        run(*CLI, "bench", "serve", *at(address), folder=tmp_path)
        assert completed(tmp_path) == 3


class TestScripts:
    def test_throughput(self, scripts: Path, tmp_path: Path) -> None:
        """`benchmark_throughput.py` runs with hooks."""
        script = str(scripts / "benchmark_throughput.py")
        run(script, *THROUGHPUT, "--output-json", "report.json", folder=tmp_path)
        assert json.loads((tmp_path / "report.json").read_text())["num_requests"] == 3

    def test_latency(self, scripts: Path, wide: list[str], tmp_path: Path) -> None:
        """`benchmark_latency.py` runs with hooks."""
        run(str(scripts / "benchmark_latency.py"), *wide, *LATENCY, "--output-json", "report.json", folder=tmp_path)
        assert json.loads((tmp_path / "report.json").read_text())["avg_latency"] > 0

    @pytest.mark.parametrize(("name", "options", "says"), OTHERS)
    def test_others(self, name: str, options: str, says: str, scripts: Path, tmp_path: Path) -> None:
        """They run with hooks, print what they measure, and write nothing."""
        assert says in run(str(scripts / f"benchmark_{name}.py"), *ENGINE, *options.split(), folder=tmp_path)

    def test_structured_output(self, address: str, scripts: Path) -> None:
        """`benchmark_serving_structured_output.py` runs; it reads a file beside it."""
        place = urlsplit(address)
        server = ["--host", str(place.hostname), "--port", str(place.port)]
        options = ["--dataset", "regex", "--num-prompts", "2", "--output-len", "8"]
        assert "Successful requests:                     2" in run(
            "benchmark_serving_structured_output.py", *MODEL, *server, *options, folder=scripts
        )

    def test_serving(self, address: str, scripts: Path, tmp_path: Path) -> None:
        """`benchmark_serving.py` runs against a server with hooks."""
        run(str(scripts / "benchmark_serving.py"), *at(address), folder=tmp_path)
        assert completed(tmp_path) == 3


def at(address: str) -> list[str]:
    """The arguments of a benchmark against a server."""
    place = urlsplit(address)
    server = ["--host", str(place.hostname), "--port", str(place.port)]
    return [*MODEL, *server, *RANDOM, "--save-result", "--result-filename", "report.json"]


def completed(folder: Path) -> int:
    """The number of requests that a benchmark against a server has completed."""
    number: int = json.loads((folder / "report.json").read_text())["completed"]
    return number
