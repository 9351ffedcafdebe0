# SPDX-License-Identifier: Apache-2.0
"""What the plug-in's tests need to take a GPU's paths: entry points that each of upstream's processes finds."""

from importlib.metadata import distributions
from pathlib import Path

from build_tools.paths import provide


def test_a_folder_has_the_entry_points_of_its_runner(tmp_path: Path) -> None:
    """Triton finds its interpreter by one of them, and upstream the stubs of a device by the other."""
    provide(tmp_path / "first", [])
    (found,) = distributions(path=[str(tmp_path / "first")])
    points = {point.group: (point.name, point.value) for point in found.entry_points}
    assert points == {
        "triton.backends": ("cpu", "mytests.harness.v1.interpreter"),
        "vllm.general_plugins": ("test_paths", "mytests.harness.v1.paths:take"),
    }


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    """No index is asked for what is missing in it."""
    provide(tmp_path, [tmp_path / "missing.txt"])
    assert list(tmp_path.iterdir()) == []
