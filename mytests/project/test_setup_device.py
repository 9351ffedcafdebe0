# SPDX-License-Identifier: Apache-2.0
"""Whether there is a device for `make test-device`: what is missing is one line."""

from pathlib import Path

import pytest

from build_tools import device
from build_tools.errors import SetupError
from mytests.harness.programs import program


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of the checkout is touched."""
    monkeypatch.setattr(device, "WORKSPACE", tmp_path)
    monkeypatch.setattr(device, "make_workspace", lambda folder: None)


def python(folder: Path, *lines: str, status: int = 0) -> str:
    """An interpreter that says these lines, the last of them where errors go."""
    *said, error = lines
    return program(folder / "python", f"printf '%s\\n' '{chr(10).join(said)}'; echo '{error}' >&2; exit {status}")


def test_a_device_is_named(tmp_path: Path) -> None:
    """With its vLLM, whatever that says when it is imported."""
    assert device.device_of(python(tmp_path, "a warning", "0.33.0", "H100", "", "")) == "H100, vLLM 0.33.0"


@pytest.mark.parametrize(
    ("lines", "status", "told"),
    [
        (("0.33.0+cpu", "", "", ""), 0, r"^no accelerator: vLLM 0\.33\.0\+cpu of \S+ computes on the CPU$"),
        (
            ("0.33.0", "H100", "pytest and the plug-in", ""),
            0,
            r"^(\S+) lacks pytest and the plug-in: \1 -m pip install .*$",
        ),
        (("", "ImportError: no vllm"), 1, r"^\S+ has no vLLM .* \(ImportError: no vllm\); name one .* DEVICE_PYTHON="),
    ],
)
def test_what_is_missing_is_told(tmp_path: Path, lines: tuple[str, ...], status: int, told: str) -> None:
    """And the way out of it."""
    with pytest.raises(SetupError, match=told):
        device.device_of(python(tmp_path, *lines, status=status))


def test_without_a_device_the_exit_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody takes that for tests that have passed."""
    monkeypatch.setattr(device.sys, "executable", python(tmp_path, "0.33.0", "", "", ""))
    assert device.main() == 1
    assert capsys.readouterr().err.endswith("computes on the CPU; nothing was tested\n")
