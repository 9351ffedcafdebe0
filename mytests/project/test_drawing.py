# SPDX-License-Identifier: Apache-2.0
"""Random tests try the same examples whatever was imported before them."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import mytests.harness.drawing  # noqa: F401


def drawn() -> list[int]:
    """What one seed draws."""
    found: list[int] = []

    @seed(0)
    @settings(database=None, max_examples=200)
    @given(st.integers(0, 10**9))
    def collect(number: int) -> None:
        found.append(number)

    collect()
    return found


def test_draws_do_not_depend_on_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module full of numbers changes none of them."""
    before = drawn()
    file = tmp_path / "numbers_of_a_module.py"
    file.write_text(f"NUMBERS = {list(range(1_000, 2_000))}\n")
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    monkeypatch.setitem(sys.modules, file.stem, module_from_spec(spec))
    assert drawn() == before
