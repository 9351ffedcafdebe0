# SPDX-License-Identifier: Apache-2.0
"""Upstream's own benchmark commands run with the plug-in, as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for

from sequence_hooks.v1.settings import plain_fields

pytestmark = pytest.mark.model

ENGINE = ["--model", str(MODEL_FOLDER), "--dtype", "float32", "--max-model-len", "256", "--enforce-eager"]
ENGINE += ["--gpu-memory-utilization", "0.1", "--num-gpu-blocks-override", "100"]
REQUESTS = ["--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "8", "--num-prompts", "3"]


@pytest.mark.full
def test_throughput(tmp_path: Path) -> None:
    """`vllm bench throughput` takes the option like any other of the engine's."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "throughput", *ENGINE, *REQUESTS]
    command += ["--special-kwargs", json.dumps(plain_fields(hooks_for("sync"))), "--output-json", str(report)]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Sequence hooks are on" in done.stdout + done.stderr
    assert json.loads(report.read_text())["num_requests"] == 3
