# SPDX-License-Identifier: Apache-2.0
"""How setuptools packs this tree: our overlay, and upstream's built package inside it."""

import shutil
from pathlib import Path

from setuptools import Distribution
from setuptools.command.build_py import build_py

from build_tools.errors import SetupError
from build_tools.release import PROJECT
from build_tools.target import choose_target

UPSTREAM_FOLDER = Path(PROJECT) / "_upstream"


class BinaryDistribution(Distribution):
    """A distribution for one platform: upstream's package brings compiled kernels."""

    def has_ext_modules(self) -> bool:
        return True


class BuildWithUpstream(build_py):
    """Puts upstream's built package into the wheel, or into the tree for an editable install."""

    def run(self) -> None:
        if not self.editable_mode:
            # Else a module that was deleted since the last build would stay in the wheel.
            shutil.rmtree(Path(self.build_lib) / PROJECT, ignore_errors=True)
        super().run()
        destination = UPSTREAM_FOLDER if self.editable_mode else self.build_lib / UPSTREAM_FOLDER
        try:
            place_upstream(destination)
        except SetupError as error:
            raise SystemExit(f"error: {error}") from None


def place_upstream(destination: Path) -> None:
    """Fetch and build upstream for this environment, and put its package at ``destination``.

    Raises:
        SetupError: the user must change something first.
    """
    # Imported here, as metadata is made in environments that lack what these need.
    from build_tools.cache import user_cache
    from build_tools.recipe import recipe_for
    from build_tools.tree import place

    place(recipe_for(choose_target()), user_cache(), destination)
