# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: what each test takes, and each fixture that tests share. `build_tools.durations` joins the files.

It writes nothing unless `build_tools.parts` runs pytest: the environment then has the name of the part, and a folder.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Those of `build_tools.parts`, which cannot be imported in the environment of the plug-in.
PART_VARIABLE = "RUNNING_PART"
FOLDER_VARIABLE = "DURATIONS_FOLDER"
SHARED = ("module", "package", "session")


class Timing:
    """Durations in seconds, by the name of a test and its phase, and by the name of a fixture."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._collected = 0.0
        self._tests: dict[str, dict[str, float]] = defaultdict(dict)
        self.fixtures: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self._collected = time.perf_counter() - self._start

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self.pytest_collection_finish()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid][report.when] = round(report.duration, 3)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        try:
            return (yield)
        finally:
            if fixturedef.scope in SHARED:
                case = f"[{str(request.param)[:40]}]" if hasattr(request, "param") else ""
                self.fixtures[f"{fixturedef.baseid}::{fixturedef.argname}{case}"] += time.perf_counter() - start

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has told its fixtures; one that crashed has not."""
        for name, seconds in getattr(node, "workeroutput", {}).get("fixtures", {}).items():
            self.fixtures[name] += seconds

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["fixtures"] = dict(self.fixtures)

    def save(self, part: str, folder: Path) -> None:
        """Write it all to a new file of ``folder``; a part may run pytest more than once."""
        name = part.replace("/", ".")
        names = (f"{name}{suffix}.json" for suffix in ("", *(f"-{number}" for number in range(2, 100))))
        fixtures = {name: round(seconds, 3) for name, seconds in self.fixtures.items()}
        told = {"part": part, "seconds": round(time.perf_counter() - self._start, 3)}
        told |= {"collected": round(self._collected, 3), "tests": self._tests, "fixtures": fixtures}
        path = next(path for path in map(folder.joinpath, names) if not path.exists())
        path.write_text(json.dumps(told, indent=1) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Measure if this is a part, or a worker of xdist. Whatever the tests run is no part itself."""
    part, folder = os.environ.pop(PART_VARIABLE, ""), os.environ.get(FOLDER_VARIABLE, "")
    if part or hasattr(config, "workerinput"):
        timing = Timing()
        config.pluginmanager.register(timing, "durations")
        if part:
            config.add_cleanup(lambda: timing.save(part, Path(folder)))
