# SPDX-License-Identifier: Apache-2.0
"""On V1 each rule is tested with and without asynchronous scheduling, and with both of upstream's model runners."""

from collections.abc import Iterator

import pytest

from mytests.harness.base import BaseEngine
from mytests.harness.tiers import modes, one_mode

IN_TWO_MODES = {
    *("test_accounting", "test_cancelled", "test_contexts", "test_edge_cases", "test_first_results", "test_forks"),
    *("test_injection", "test_released", "test_replacement", "test_resume", "test_text", "test_tree_budget"),
}
"""The files of rules of which `make test` runs two modes: who is in flight, or who computes what, matters to them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in the modes of its file."""
    name = metafunc.module.__name__.rpartition(".")[2]
    metafunc.parametrize("mode", modes() if name in IN_TWO_MODES else one_mode(), indirect=True)


@pytest.fixture(autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the engines of a test run."""
    monkeypatch.setattr(BaseEngine, "mode", request.param)
    yield request.param
