# SPDX-License-Identifier: Apache-2.0
"""What .ci/run runs of the rest: chosen by the commit alone, what its files ask for first, everything in its turn."""

import os
import re
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from build_tools import rest as table
from build_tools.releases import SHA256
from build_tools.rest import GROUPS, ON_BOTH, RELEASES, Rest, parts_of
from build_tools.turns import SECONDS, Commit, choose, commit_of, told

ROOT = Path(__file__).parents[2]
MAKEFILES = (ROOT / "Makefile", ROOT / "build_tools" / "tests.mk")
DAY = 24 * 60 * 60
NOON = 20_000 * DAY + DAY // 2
PARTS = [Rest(f"part-{number}", f"make part-{number}", 40, (f"folder-{number}/*",)) for number in range(10)]


class Repository:
    """A repository of git in a folder."""

    def __init__(self, folder: Path, *clone: str) -> None:
        self.folder = folder
        self.git(*(clone or ("init", "--quiet", "--initial-branch=main")), cwd=folder.parent if clone else folder)

    def git(self, *arguments: str, time: int = NOON, cwd: Path | None = None) -> None:
        """Run git as someone, at a time."""
        who = {f"GIT_{role}_{what}": "someone" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        when = {"GIT_COMMITTER_DATE": f"@{time} +0000", "GIT_AUTHOR_DATE": "@0 +0000"}
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        subprocess.run(
            ["git", *arguments], cwd=cwd or self.folder, check=True, env={**outer, **who, **when, **own}, timeout=60
        )

    def commit(self, name: str, time: int) -> None:
        """A commit that changes one file."""
        (self.folder / name).write_text(f"{time}")
        self.git("add", name)
        self.git("commit", "--quiet", "-m", name, time=time)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Four commits on the main branch: one of long ago, and three of the last two days."""
    folder = tmp_path / "origin"
    folder.mkdir()
    made = Repository(folder)
    for name, time in (("first", 0), ("old", NOON - DAY - 1), ("new", NOON - DAY // 2), ("newest", NOON)):
        made.commit(name, DAY + time)
    return made


def names(parts: Sequence[Rest]) -> list[str]:
    return [part.name for part in parts]


def test_a_branch_has_what_differs_from_main(repository: Repository, tmp_path: Path) -> None:
    """In a clone too, and with what is not committed yet."""
    clone = Repository(tmp_path / "clone", "clone", "--quiet", str(repository.folder), str(tmp_path / "clone"))
    clone.git("checkout", "--quiet", "-b", "topic")
    clone.commit("mine", NOON + DAY)
    (clone.folder / "old").write_text("changed")
    commit = commit_of(clone.folder)
    assert (commit.changed, commit.is_branch) == (["mine", "old"], True)


def test_the_main_branch_has_the_last_day(repository: Repository) -> None:
    """Before its own latest commit, whatever the clock says."""
    commit = commit_of(repository.folder)
    assert (commit.changed, commit.is_branch) == (["new", "newest"], False)


@pytest.mark.parametrize(("depth", "changed"), [("1", []), ("2", ["newest"]), ("4", ["new", "newest"])])
def test_a_history_that_is_cut_off(repository: Repository, tmp_path: Path, depth: str, changed: list[str]) -> None:
    """Its first commit is not said to have changed all files."""
    folder = tmp_path / "shallow"
    url = repository.folder.as_uri()
    shallow = Repository(folder, "clone", "--quiet", "--depth", depth, url, str(folder))
    commit = commit_of(shallow.folder)
    assert commit.changed == changed
    assert commit.number == commit_of(repository.folder).number


def test_no_history_at_all(tmp_path: Path) -> None:
    """As in an archive of the sources."""
    assert commit_of(tmp_path) == Commit()


def test_the_same_commit_chooses_the_same() -> None:
    """The next number another group, and so on until each had its turn."""
    turns = [choose(PARTS, Commit(number=number), 100) for number in range(6)]
    assert [names([*each.chosen]) for each in turns] == [
        *(["part-0", "part-1"], ["part-2", "part-3"], ["part-4", "part-5"], ["part-6", "part-7"]),
        *(["part-8", "part-9"], ["part-0", "part-1"]),
    ]
    assert all({*each.chosen, *each.left_out} == {*PARTS} for each in turns)


def test_what_a_branch_has_changed_is_tested() -> None:
    """However long that takes; other parts fill what time is left."""
    commit = Commit(number=1, changed=["folder-7/sub/file", "folder-9/file", "folder-8/file"], is_branch=True)
    assert names([*choose(PARTS, commit, 100).chosen]) == ["part-7", "part-8", "part-9"]
    assert names([*choose(PARTS, commit, 160).chosen]) == ["part-7", "part-8", "part-9", "part-4"]


def test_what_the_main_branch_has_changed_comes_first() -> None:
    """As far as there is time."""
    commit = Commit(number=1, changed=["folder-7/sub/file", "folder-9/file", "folder-8/file"])
    turns = choose(PARTS, commit, 100)
    assert names([*turns.chosen]) == ["part-7", "part-8"]
    assert "part-9" in names(turns.left_out)


def test_the_report_has_what_runs_and_the_commands_for_the_rest() -> None:
    """With the reason for each."""
    commit = Commit("abc", changed=["folder-7/file"])
    assert told(choose(PARTS[6:9], commit, 100), commit, 100).splitlines() == [
        "== turns of commit abc: 80 of 100 s",
        "  40 s  part-7: folder-7/file has changed",
        "  40 s  part-6: its turn",
        "left out: make part-8",
    ]


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        (
            "sequence_hooks/v1/core/scheduler.py",
            [*(f"release-{release}" for release in RELEASES), *("plugin-walks", "plugin-rules")],
        ),
        ("sequence_hooks/protocols/npr.py", ["fork-notations", "plugin-notations"]),
        ("benchmarks/forkjoin/sides.py", ["bench", "bench-plugin", "bench-upstream"]),
        ("requirements/cpu.txt", ["dist"]),
    ],
)
def test_files_ask_for_parts(changed: str, asked: list[str]) -> None:
    """Those that would notice a fault in them."""
    assert names([part for part in parts_of(ROOT) if part.asked_for_by([changed])]) == asked


def test_every_file_with_full_tests_is_in_the_rest(tmp_path: Path) -> None:
    """In each environment that runs it, unless a group has it, or two groups share it."""
    mark = f"pytestmark = pytest.mark.{'full'}\n"
    for name in ("test_bench.py", "test_fuzz.py", "test_one.py", "rules/test_both.py", "v1/test_plugin.py"):
        path = tmp_path / "mytests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(mark)
    (tmp_path / "mytests" / "test_none.py").write_text("")
    files = parts_of(tmp_path)[len(GROUPS) :]
    both, one_each = ["fork-rules.test_both", "plugin-rules.test_both"], ["fork-test_one", "plugin-v1.test_plugin"]
    assert names(files) == [*both, "fork-test_fuzz", *one_each]
    assert files[0].command == "make fork-full TESTS=mytests/rules/test_both.py"


def test_each_part_has_a_command_and_its_time() -> None:
    """Targets and files exist, names are unique, and no part takes more than there is."""
    rest = parts_of(ROOT)
    targets = re.findall(r"^([a-z-]+%?):", "".join(path.read_text() for path in MAKEFILES), flags=re.M)
    patterns = [target.replace("%", "*") for target in targets]
    for part in rest:
        make, target, *_ = part.command.split()
        assert make == "make" and any(fnmatch(target, pattern) for pattern in patterns), part.command
        assert all((ROOT / name).exists() for name in re.findall(r"mytests/[\w/.]+", part.command)), part.command
        assert part.seconds <= SECONDS, part.name
    assert len({part.name for part in rest}) == len(rest)


def test_the_table_has_all_releases_and_environments() -> None:
    """As they are known elsewhere."""
    assert {*RELEASES} == {*SHA256}
    (line,) = re.findall(r"^ON_PLUGIN := (.*?[^\\])$", MAKEFILES[1].read_text(), flags=re.M | re.S)
    on_plugin = {pattern.removesuffix("/*") for pattern in ON_BOTH} | {"mytests/v1"}
    assert {*line.replace("\\", "").split()} == on_plugin
    assert table.SECONDS_OF_A_FILE <= SECONDS
