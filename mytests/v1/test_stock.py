# SPDX-License-Identifier: Apache-2.0
"""Where ``import vllm`` would find the fork, as in the root of its checkout, the plug-in says so in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mytests.harness.v1.configuration import MODEL
from sequence_hooks.v1 import engine_args, plugin
from sequence_hooks.v1.stock import check_stock
from vllm.engine.arg_utils import EngineArgs

COMMANDS = {
    "selfcheck": ["-m", "sequence_hooks.selfcheck", "MODEL"],
    "as a command": ["-m", "sequence_hooks", "selfcheck", "MODEL"],
    "LLM": ["-c", "from sequence_hooks.v1 import LLM"],
    "engine_args": ["-c", "from sequence_hooks.v1 import engine_args"],
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which a fork lies."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "vllm" / "_overlay.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_in_the_forks_checkout_it_says_what_is_wrong(checkout: Path, arguments: list[str]) -> None:
    """Before anything is imported that could fail for another reason; the last line has the way out."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == (1 if "-c" in arguments else 2)
    last = done.stderr.splitlines()[-1]
    assert f"vllm would be imported from {checkout / 'vllm'}, the fork" in last and "start Python in another" in last
    assert len(done.stderr.splitlines()) == 1 or "-c" in arguments


def test_its_processes_would_import_the_fork(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``vllm serve``, which imports a stock one itself. Without hooks that is upstream's concern."""
    plugin.register()
    arguments = EngineArgs(model=MODEL, **engine_args({"promise_token_id": 3}))
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with pytest.raises(ImportError, match="the fork of this repository"):
        arguments.create_engine_config()
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    check_stock()


def test_none_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name."""
    monkeypatch.setattr("sequence_hooks.v1.stock.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="vllm is not installed here"):
        check_stock()
