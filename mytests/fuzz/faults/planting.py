# SPDX-License-Identifier: Apache-2.0
"""Plants faults in the running process: a function gets other code, wherever it was imported, and no file is touched.

As a plug-in of pytest, ``-p mytests.fuzz.faults.planting --fault ID``, it plants one before the first test runs.
"""

import importlib
import inspect
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

from mytests.fuzz.faults import fault_named
from mytests.fuzz.faults.fault import Fault
from mytests.fuzz.faults.places import edited, function_in, parted


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """A context in which the engine has ``fault``; raises a `LookupError` if the source has not what it replaces."""
    before = []
    try:
        for place in dict.fromkeys(edit.place for edit in fault.edits):
            code, function = _code(place, fault), _function_at(place)
            before.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _function_at(place: str) -> FunctionType:
    module, names = parted(place)
    found: Any = importlib.import_module(module)
    for name in names:
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else found
    found = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(found, FunctionType), f"{place} is no function of Python"
    return found


def _code(place: str, fault: Fault) -> CodeType:
    """What the function at ``place`` is compiled to with the fault."""
    module, names = parted(place)
    path = importlib.import_module(module).__file__
    assert path is not None
    text = edited(Path(path).read_text(), (edit for edit in fault.edits if edit.place == place))
    # Only the whole module is compiled as it was: with ``__future__``, and with what ``super()`` needs.
    code = compile(text, path, "exec", dont_inherit=True)
    line = function_in(text, place).lineno
    for name in names:
        found = [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name]
        code = found[0] if len(found) == 1 else next(each for each in found if each.co_firstlineno == line)
    return code


class Outcomes:
    """Notes which nets have failed at which test, and skips the rest of those that have.

    Args:
        path: The file for the outcomes, as JSON: by net, the first test that has failed, if any, the number of tests
            that have run, the seconds until then, and whether only `make test-all` runs the one that has failed, or all
            that have run. Those are the last to run, so that they tell what no other test does.
    """

    def __init__(self, path: Path, nets: list[str]) -> None:
        self._path = path
        self._nets = nets
        self._outcomes: dict[str, dict[str, Any]] = {
            net: {"failed": None, "ran": 0, "seconds": 0.0, "is_full": True} for net in nets
        }
        self._full: set[str] = set()
        self._start = time.perf_counter()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._full = {item.nodeid for item in items if item.get_closest_marker("full")}
        items.sort(key=lambda item: item.nodeid in self._full)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if any(self._outcomes[net]["failed"] for net in self._of(item.nodeid)):
            pytest.skip("its net has caught the fault")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for net in self._of(report.nodeid):
            outcome = self._outcomes[net]
            has_run = report.when == "call" and not report.skipped
            outcome["ran"] += has_run
            outcome["seconds"] += report.duration
            if has_run and report.nodeid not in self._full:
                outcome["is_full"] = False
            if report.failed and outcome["failed"] is None:
                outcome |= {"failed": report.nodeid, "is_full": report.nodeid in self._full}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            for net in self._nets:
                if net.startswith(report.nodeid):
                    self._outcomes[net]["failed"] = f"{report.nodeid} (collection)"

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._outcomes))

    def _of(self, nodeid: str) -> list[str]:
        """The nets that a test belongs to."""
        return [net for net in self._nets if nodeid == net or nodeid.startswith((f"{net}[", f"{net}::", f"{net}/"))]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault", help="the fault to plant before the first test")
    parser.addoption("--outcomes", help="the file that says which of the given tests have failed")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path:
        config.pluginmanager.register(Outcomes(Path(path), list(config.args)), "outcomes of nets")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Now the conftest has set the environment, so that modules of the engine may be imported."""
    name = session.config.getoption("--fault")
    if name:
        # The same examples each time, and the first that fails is enough.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("planted", settings(), derandomize=True, phases=phases)
        settings.load_profile("planted")
        stack = ExitStack()
        stack.enter_context(planted(fault_named(name)))
        session.config.add_cleanup(stack.close)
