# SPDX-License-Identifier: Apache-2.0
"""Parts of a run: all run whichever fails, side by side or one after the other, and the last line names what failed."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from build_tools.durations import PAGE
from build_tools.ledger import LEDGER, Ran, noted, verdict
from build_tools.parts import FOLDER_VARIABLE, INTERRUPTED, PART_VARIABLE, ROOT, Part, main

INNER = f"{sys.executable} -m build_tools.parts"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where parts note how they went; these tests may be in a part themselves."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv(PART_VARIABLE, raising=False)
    return tmp_path


def outcomes(folder: Path) -> dict[str, str]:
    return {part.name: part.outcome for part in noted(folder)}


def test_a_part_that_fails_hides_no_other(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The others run, the exit status is 1, and the last line names it."""
    assert main(["these", "--then", "a=true", "b=exit 3", "c=echo still here"]) == 1
    assert outcomes(folder) == {"a": "passed", "b": "failed", "c": "passed"}
    shown = capfd.readouterr().out.splitlines()
    assert "still here" in shown and "== part b" in shown
    assert shown[-1] == (folder / "these.failed").read_text() == "failed: b"


def test_if_all_pass_the_last_line_says_so(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The exit status is 0, and make has no name to fail with."""
    assert main(["these", "--then", "a=true"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "all parts of these passed"
    assert (folder / "these.failed").read_text() == ""


def test_chains_run_side_by_side(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each waits here for a file that the other makes, and each line says which of them it is from."""
    wait = "until test -e {0}; do sleep 0.01; done; echo found {1}"
    one = f"a=touch {folder}/one; {wait.format(folder / 'other', 'other')}"
    other = f"b=touch {folder}/other; {wait.format(folder / 'one', 'one')}"
    assert main(["these", "--chain", "left", one, "--chain", "right one", other]) == 0
    shown = capfd.readouterr().out.splitlines()
    assert {"left      | found other", "right one | found one"} <= set(shown)


def test_the_chain_that_ends_first_takes_what_either_may_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The other one waits here until that is done, and takes the next."""
    wait = f"b=until test -e {folder}/first; do sleep 0.01; done"
    chains = ["--chain", "left", "set-up!=true", "a=true", "--chain", "right", "other!=true", wait]
    assert main(["these", *chains, "--either", f"first=echo here; touch {folder}/first", "second=true"]) == 0
    assert "left  | here" in capfd.readouterr().out.splitlines()
    assert set(outcomes(folder).values()) == {"passed"} and {"first", "second"} < set(outcomes(folder))


def test_what_either_may_run_waits_for_all_set_up(folder: Path) -> None:
    """A chain that ends while the other is at its set-up waits; if that fails, it is not run."""
    chains = ["--chain", "left", "a=true", "--chain", "right", "set-up!=sleep 1; {0}", "b=true"]
    for command, outcome in (("true", "passed"), ("false", "not run")):
        assert main(["these", *(word.format(command) for word in chains), "--either", "c=true"]) == (command == "false")
        assert outcomes(folder)["c"] == outcome


def test_a_set_up_that_fails_ends_its_chain(folder: Path) -> None:
    """The other chain goes on, what needs both does not, and all of it stands in the last line."""
    chains = ["--chain", "left", "set-up!=false", "a=true", "--chain", "right", "other!=true", "b=false", "c=true"]
    assert main(["these", *chains, "--then", "d=true"]) == 1
    assert outcomes(folder) == {
        "set-up": "failed",
        "a": "not run",
        "d": "not run",
        "other": "passed",
        "b": "failed",
        "c": "passed",
    }
    assert verdict(sorted(noted(folder), key=lambda part: part.name)) == "failed: b, set-up; not run: a, d"


def test_parts_within_a_part(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The last line names the innermost ones that failed."""
    assert main(["these", "--then", f"a={INNER} inner --then x=false y=true", "b=true"]) == 1
    assert outcomes(folder) == {"a": "failed", "a/x": "failed", "a/y": "passed", "b": "passed"}
    assert capfd.readouterr().out.splitlines()[-1] == "failed: a/x"


def test_a_run_begins_with_an_empty_ledger(folder: Path) -> None:
    """What earlier parts have noted is removed, and nothing else."""
    for name in (LEDGER, "old.json", "old.failed", "mine.txt"):
        (folder / name).write_text("")
    assert main(["these", "--then", "a=true"]) == 0
    assert {path.name for path in folder.iterdir()} == {LEDGER, PAGE, "these.failed", "mine.txt"}


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("lint", Part("lint", "make --no-print-directory lint")),
        ("setup!", Part("setup", "make --no-print-directory setup", is_needed=True)),
        ("a=b=c d", Part("a", "b=c d")),
        ("a!=b", Part("a", "b", is_needed=True)),
    ],
)
def test_a_part_is_a_target_or_a_command(word: str, part: Part) -> None:
    """With a "!" after its name, if it is needed for what comes after it."""
    assert Part.of(word) == part


def test_a_run_that_is_ended_ends_its_parts(folder: Path) -> None:
    """No part begins any more; what had run stands in the ledger."""
    command = [sys.executable, "-m", "build_tools.parts", "these", "--then", "a=echo begun; exec sleep 60", "b=true"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "begun\n":
            assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        told = process.stdout.read()
    assert process.returncode == INTERRUPTED
    assert told.splitlines()[-1] == "interrupted"
    assert outcomes(folder) == {"a": "failed", "b": "not run"}


def test_a_signal_that_does_not_end_a_wait_ends_the_run(folder: Path) -> None:
    """As one that another thread gets, or that comes just before the wait."""

    def tell_this_thread() -> None:
        while not (folder / "begun").exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    telling = threading.Thread(target=tell_this_thread)
    telling.start()
    assert main(["these", "--then", f"a=touch {folder}/begun; exec sleep 60"]) == INTERRUPTED
    telling.join()
    assert outcomes(folder) == {"a": "failed"}


def test_the_processes_of_a_make_are_not_those_of_its_parts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its variables are."""
    monkeypatch.setenv("MAKEFLAGS", "k -j2 --jobserver-auth=3,4 -- FULL=1")
    assert main(["these", "--then", 'a=echo "$MAKEFLAGS"']) == 0
    assert capfd.readouterr().out.splitlines()[1].split() == ["k", "--", "FULL=1"]


def test_an_inner_failure_stands_for_the_outer_one() -> None:
    """Even if names begin alike."""
    parts = [Ran(name, 1, 0.0, 0.0) for name in ("a", "a/b", "ab")]
    assert verdict(parts) == "failed: a/b, ab"
