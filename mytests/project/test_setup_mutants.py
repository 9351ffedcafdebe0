# SPDX-License-Identifier: Apache-2.0
"""mutmut finds the settings of the plug-in where it looks for them."""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from build_tools.mutants import ROOT, configuration, make_workspace


def test_the_plugins_settings_are_those_of_mutmut() -> None:
    """And the fork's are not lost."""
    before = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    after = tomllib.loads(configuration((ROOT / "pyproject.toml").read_text()))["tool"]
    assert after["mutmut"] == before["mutmut-plugin"]
    assert after["mutmut-fork"] == before["mutmut"]


def test_what_the_settings_name_is_copied(tmp_path: Path) -> None:
    """Tests, what is changed, and whatever else mutmut copies."""
    make_workspace(tmp_path)
    settings = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["mutmut"]
    arguments = [each for each in settings["pytest_add_cli_args"] if each.endswith(".py")]
    tests = settings["pytest_add_cli_args_test_selection"]
    for name in (*settings["source_paths"], *settings["also_copy"], *tests, *arguments):
        assert (tmp_path / name).exists(), name
