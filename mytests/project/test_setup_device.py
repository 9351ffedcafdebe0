# SPDX-License-Identifier: Apache-2.0
"""Whether there is a device for `make test-device`: what is missing is one line."""

from pathlib import Path

import pytest

from build_tools import device


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of the checkout is touched."""
    monkeypatch.setattr(device, "WORKSPACE", tmp_path)
    monkeypatch.setattr(device, "make_workspace", lambda folder: None)


def python(folder: Path, *lines: str) -> str:
    """An interpreter that says these lines."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' '{chr(10).join(lines)}'\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_device_the_exit_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody takes that for tests that have passed."""
    monkeypatch.setattr(device.sys, "executable", python(tmp_path, "0.33.0", "", ""))
    assert device.main() == 1
    assert capsys.readouterr().err.endswith("computes on the CPU; nothing was tested\n")
