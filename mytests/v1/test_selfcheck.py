# SPDX-License-Identifier: Apache-2.0
"""``python -m sequence_hooks.selfcheck``: a right engine passes; faults that are planted are reported."""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from forkjoin_engine import MODEL_FOLDER

from mytests.fuzz.model import model_folder
from mytests.fuzz.planting import planted
from mytests.harness.environment import EXAMPLES
from mytests.harness.tiers import full
from sequence_hooks.v1.selfcheck import checks, oracle, side
from sequence_hooks.v1.selfcheck.command import report
from sequence_hooks.v1.selfcheck.findings import Seen, Stretch, Verdict
from sequence_hooks.v1.selfcheck.options import parse
from vllm.logprobs import Logprob

pytestmark = pytest.mark.model

OPTIONS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--block-size", "32"]
OPTIONS += ["--gpu-memory-utilization", "0.2", "--num-gpu-blocks-override", "200"]


def command(*options: str, model: str = f"{EXAMPLES}/forkjoin-tiny") -> "subprocess.CompletedProcess[str]":
    """Run the command as a user does, by default on the tiny model."""
    whole = [sys.executable, "-m", "sequence_hooks.selfcheck", model, *OPTIONS, *options]
    return subprocess.run(whole, capture_output=True, text=True, check=False)


class TestTolerance:
    """A stretch of two tokens, 1 and 2, after which a stock engine finds 3 a little or much likelier than 1."""

    STRETCH = Stretch("r", context=[0], token_ids=[1, 2], logprobs=[-1.0, -1.0])

    def compared(self, advantage: float, logprob: float = -1.0) -> tuple[Any, Verdict]:
        """What is left to compare, and the verdict."""
        entry = {3: Logprob(logprob + advantage), 1: Logprob(logprob)}
        verdict = Verdict()
        sampled = SimpleNamespace(token_ids=[3, 4], logprobs=[entry, {}])
        return oracle.compare((self.STRETCH, 0), sampled, 0.1, verdict), verdict

    def test_after_a_tie_the_rest_is_compared_anew(self) -> None:
        """The tie itself counts as the same."""
        assert self.compared(0.05) == ((self.STRETCH, 1), Verdict(num_tokens=1, num_ties=1))

    def test_a_likelier_token_is_a_difference(self) -> None:
        """With both tokens, and by how much."""
        rest, verdict = self.compared(0.5)
        assert rest is None
        assert verdict.differences == [
            "r, token 1 after a context of 1: 1 with hooks; without, 3, which is likelier by 0.5"
        ]

    def test_another_logprob_is_a_difference(self) -> None:
        """Even if the token is the same: a model may always choose one token."""
        rest, verdict = self.compared(0.0, logprob=-1.5)
        assert rest is None
        assert verdict.differences == ["r, token 1 after a context of 1: the logprob of 1 is off by 0.5"]


class TestCommand:
    @pytest.mark.full
    @pytest.mark.parametrize(("architecture", "dtype"), [("gemma3_text", "float32"), ("qwen3_next", "bfloat16")])
    def test_windows_and_states_pass_them_too(self, architecture: str, dtype: str) -> None:
        """Some prompts are longer than the windows; the states are those of gated delta nets. There is no tokenizer."""
        done = command("--skip-tokenizer-init", "--dtype", dtype, model=str(model_folder(architecture)))
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.full
    def test_an_engine_that_hooks_refuse(self) -> None:
        """Status 2, and the reason."""
        done = command("--runner", "pooling")
        assert done.returncode == 2
        assert "error: special_kwargs: sequence hooks do not work with runner='pooling'" in done.stderr

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (["--special-kwargs", '{"promise_token_id": 3}'], "leave --special-kwargs and --scheduler-cls out"),
            (["--data-parallel-size", "2"], "--data-parallel-size is 2; leave it out"),
        ],
    )
    def test_options_that_it_refuses(self, options: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Before any engine is started."""
        with pytest.raises(SystemExit) as raised:
            parse([str(MODEL_FOLDER), *options])
        assert raised.value.code == 2
        assert reason in capsys.readouterr().err


HYBRID = ["--block-size", "1024"]
"""No prompt ends a block: there upstream's kernels for Mamba-2 end the engine of a CPU."""

FAULTS = [
    full("a-wrong-block-is-shared", "_child_0, token 1 after a context of", "", [], id="a-wrong-block-is-shared"),
    full("forks-never-released", "blocks are not free", "", [], id="forks-never-released"),
    full(
        *("a-block-is-copied-in-part", "_child_0, token 1 after a context of", "granitemoehybrid", HYBRID),
        id="a-block-is-copied-in-part",
    ),
]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the engine's core where faults are planted."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def both_sides(folder: Path, fault: str | None = None, architecture: str = "", more: Sequence[str] = ()) -> int:
    """The exit status after both sides in this process, the first one with a fault."""
    model = [str(model_folder(architecture)), "--skip-tokenizer-init"] if architecture else [str(MODEL_FOLDER)]
    options = [*model, *OPTIONS, *more]
    with nullcontext() if fault is None else planted(fault):
        side.hooks(parse(options), folder)
    side.stock(parse(options), folder)
    seen = msgspec.json.decode((folder / side.SEEN).read_bytes(), type=Seen)
    verdicts = msgspec.json.decode((folder / side.VERDICTS).read_bytes(), type=side.Verdicts)
    return report(seen, verdicts)


def test_without_a_fault_nothing_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All checks pass, in one process as in those of the command."""
    assert both_sides(tmp_path) == 0
    said = capsys.readouterr().out
    assert all(f"{check.__name__:<9} ok" in said for check in checks.CHECKS)
    assert "10 forks within 2 tokens of one" in said


@pytest.mark.full
def test_an_engine_that_ends_without_hooks_too_is_said_to() -> None:
    """Upstream's kernels for Mamba-2 end the engine of a CPU where a prompt goes on after a block's end."""
    done = command("--skip-tokenizer-init", model=str(model_folder("granitemoehybrid")))
    assert done.returncode == 2, done.stdout
    assert "without hooks this engine ends with an error: IndexError" in done.stderr


@pytest.mark.full
def test_an_engine_that_differs_from_itself_is_said_to() -> None:
    """Upstream's kernel for CPUs rotates what it should not of LFM2's heads, whatever lies beside them."""
    done = command("--skip-tokenizer-init", model=str(model_folder("lfm2")))
    assert done.returncode == 1, done.stderr
    assert "Without hooks, too, this engine differs from itself if nothing else runs" in done.stdout


@pytest.mark.parametrize(("name", "told", "architecture", "more"), FAULTS)
def test_a_planted_fault_is_reported(
    name: str, told: str, architecture: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the check that it breaks, the place, and exit status 1."""
    assert both_sides(tmp_path, name, architecture, more) == 1
    said = capsys.readouterr().out
    assert f"{'fork':<9} DIFFERS" in said
    assert told in said
