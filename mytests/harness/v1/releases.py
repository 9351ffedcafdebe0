# SPDX-License-Identifier: Apache-2.0
"""Which release of vLLM the tests run on, and what that means for them."""

import os

import pytest

import vllm

RELEASE = tuple(map(int, vllm.__version__.split(".")[:2]))

assert os.environ.get("RELEASE_UNDER_TEST") in (None, vllm.__version__), f"vLLM {vllm.__version__} is imported"

IS_REFERENCE = RELEASE == (0, 32)
"""The release that ``make plugin`` installs. It gets all tests; others get what may differ between releases."""


def since(minor: int, why: str) -> pytest.MarkDecorator:
    """Marks a test that needs release 0.``minor``."""
    return pytest.mark.skipif((0, minor) > RELEASE, reason=f"before vLLM 0.{minor} {why}")
