# SPDX-License-Identifier: Apache-2.0
"""Upstream's own benchmarks, unchanged, with ``--special-kwargs``; and ours of the plug-in beside the fork."""

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

from benchmarks.forkjoin.models import SMALL, Model
from benchmarks.forkjoin.plans import Plan, equal
from benchmarks.forkjoin.sides import Workshop
from benchmarks.plugin_forkjoin import measure as plugin
from benchmarks.plugin_forkjoin.contestants import CONTESTANTS
from benchmarks.plugin_forkjoin.outcomes import Outcomes
from benchmarks.plugin_forkjoin.page import write_page
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


def run(*arguments: str, folder: Path, use_v1: str = "0") -> str:
    """What a command prints when run in ``folder``; it must succeed."""
    environment = os.environ | {"VLLM_USE_V1": use_v1}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=folder)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.parametrize("is_script", [False, True], ids=["command", "script"])
class TestBoth:
    """`vllm bench` has them as commands, and the archive as scripts."""

    @pytest.mark.parametrize(("name", "figure"), [("throughput", "num_requests"), ("latency", "avg_latency")])
    def test_in_process(
        self, name: str, figure: str, is_script: bool, scripts: Path, wide: list[str], tmp_path: Path
    ) -> None:
        """Of many requests, or of a batch."""
        options = THROUGHPUT if name == "throughput" else [*wide, *LATENCY]
        run(*called(name, scripts, is_script), *options, "--output-json", "report.json", folder=tmp_path)
        assert json.loads((tmp_path / "report.json").read_text())[figure] > 0

    def test_against_a_server(self, address: str, is_script: bool, scripts: Path, tmp_path: Path) -> None:
        """All requests are completed."""
        options = [*MODEL, *at(address), *RANDOM, "--save-result", "--result-filename", "report.json"]
        run(*called("serving" if is_script else "serve", scripts, is_script), *options, folder=tmp_path)
        assert json.loads((tmp_path / "report.json").read_text())["completed"] == 3


@pytest.mark.parametrize("options", [[EAGER], []], ids=["eager", "compiled"])
def test_throughput_on_v1(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hooks; V1 compiles the model by default."""
    # Dynamo traces, but nothing is compiled to C++: this is upstream's switch for its CPU tests.
    monkeypatch.setenv("VLLM_CPU_CI_ENV", "1")
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "1")
    sizes = ["--num-prompts", "4", "--input-len", "16", "--output-len", "8", "--output-json", "report.json"]
    run(*CLI, "bench", "throughput", *MODEL, *model_args(), *options, *sizes, folder=tmp_path, use_v1="1")
    assert json.loads((tmp_path / "report.json").read_text())["num_requests"] == 4


class TestScripts:
    @pytest.mark.parametrize(("name", "options", "says"), OTHERS)
    def test_others(self, name: str, options: str, says: str, scripts: Path, tmp_path: Path) -> None:
        """They run with hooks, print what they measure, and write nothing."""
        assert says in run(*called(name, scripts, True), *ENGINE, *options.split(), folder=tmp_path)

    def test_structured_output(self, address: str, scripts: Path) -> None:
        """`benchmark_serving_structured_output.py` runs; it reads a file beside it."""
        options = ["--dataset", "regex", "--num-prompts", "2", "--output-len", "8"]
        assert "Successful requests:                     2" in run(
            "benchmark_serving_structured_output.py", *MODEL, *at(address), *options, folder=scripts
        )


def called(name: str, scripts: Path, is_script: bool) -> list[str]:
    """What runs a benchmark."""
    return [str(scripts / f"benchmark_{name}.py")] if is_script else [*CLI, "bench", name]


def at(address: str) -> list[str]:
    """The arguments of a benchmark against a server."""
    place = urlsplit(address)
    return ["--host", str(place.hostname), "--port", str(place.port)]


def test_the_plug_in_takes_the_steps_of_the_fork(tmp_path: Path) -> None:
    """Steps and tokens are the same in both, with and without injection; the page has every side."""
    plans = (equal(64, 2, 8), Plan(64, (8,) * 4, num_requests=3), Plan(64, (8,) * 2, depth=3))
    kinds = tuple(dict.fromkeys(each.kind for each in CONTESTANTS))
    found = plugin.measure(plugin.Suite(1, ((SMALL, plans),)), Workshop(tmp_path, kinds))
    outcomes = Outcomes.saved(found, tmp_path / "outcomes.jsonl")
    for plan in plans:
        for ours, fork in (("hooks", "fork"), ("injection", "fork, injection")):
            (one,), (other,) = (outcomes.of(SMALL.name, side, plan) for side in (ours, fork))
            assert (one.steps, one.tokens) == (other.steps, other.tokens)
    page = write_page(outcomes, [], "a test", 60.0, "a machine")
    assert all(side.name in page for side in CONTESTANTS)
