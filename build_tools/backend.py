# SPDX-License-Identifier: Apache-2.0
"""setuptools' build backend, with build requirements that depend on the target device."""

from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

from build_tools.requirements import build_requirements
from build_tools.target import choose_target


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """PEP 517's hook."""
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *build_requirements(choose_target()),
    ]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """PEP 660's hook."""
    return [
        *build_meta.get_requires_for_build_editable(config_settings),
        *build_requirements(choose_target()),
    ]
