# SPDX-License-Identifier: Apache-2.0
"""What depends on the target device; the rest of the metadata is in pyproject.toml."""

from setuptools import find_packages, setup

from build_tools.commands import BinaryDistribution, BuildWithUpstream
from build_tools.errors import SetupError
from build_tools.release import distribution_version, require_supported_python
from build_tools.requirements import UPSTREAM_EXTRAS, read_requirements, runtime_requirements
from build_tools.target import choose_target

try:
    require_supported_python()
    target = choose_target()
except SetupError as error:
    raise SystemExit(f"error: {error}") from None

setup(
    version=distribution_version(target),
    packages=find_packages(
        include=["sequence_hooks", "sequence_hooks.*", "vllm", "vllm.*"], exclude=["vllm._upstream", "vllm._upstream.*"]
    ),
    install_requires=runtime_requirements(target),
    extras_require={**UPSTREAM_EXTRAS, "test": read_requirements("dev.txt")},
    cmdclass={"build_py": BuildWithUpstream},
    distclass=BinaryDistribution,
)
