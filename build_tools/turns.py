# SPDX-License-Identifier: Apache-2.0
"""``python -m build_tools.turns``: which parts of the rest it is the turn of, and with ``--run`` they run.

What is chosen depends on the commit alone, so that a second run chooses the same. Parts that the changed files ask for
come first. On a branch those are known, and all of them run; where there is only the main branch they are guessed from
the commits of its last day, and run as far as there is time. The others fill the time that is left, as many as fit:
they are dealt into groups of that length, and the commit's day and hash choose the group to begin with.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from build_tools import parts
from build_tools.rest import Rest, parts_of

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 420
_DAY = 24 * 60 * 60
_MAIN = ("origin/main", "main")


@dataclass(frozen=True)
class Commit:
    """What decides."""

    name: str = "none"
    number: int = 0
    """Of its day and its hash: the next commit has another, and so has the same change on another day."""

    changed: list[str] = field(default_factory=list)
    """The files that differ from the main branch, or that its last day has changed."""

    is_branch: bool = False


@dataclass
class Turns:
    """The parts that are to run, each with the reason, and those that are not."""

    chosen: dict[Rest, str] = field(default_factory=dict)
    left_out: list[Rest] = field(default_factory=list)

    @property
    def seconds(self) -> int:
        """What the chosen ones take."""
        return sum(part.seconds for part in self.chosen)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: that of the parts, if they are to run."""
    parser = argparse.ArgumentParser(prog="python -m build_tools.turns", description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="the time to use (default: %(default)s)")
    parser.add_argument("--run", action="store_true", help="run what is chosen")
    given = parser.parse_args(arguments)
    commit = commit_of(ROOT)
    turns = choose(parts_of(ROOT), commit, given.seconds)
    print(told(turns, commit, given.seconds), flush=True)
    return (
        parts.main(["turns", "--then", *(f"{part.name}={part.command}" for part in turns.chosen)]) if given.run else 0
    )


def commit_of(root: Path) -> Commit:
    """The commit that is checked out at ``root``; where git knows none, it has changed nothing."""
    head = _git(root, "show", "-s", "--format=%H %ct", "HEAD").split()
    if not head:
        return Commit()
    name, time = head[0], int(head[1])
    bases = [_git(root, "merge-base", "HEAD", main).strip() for main in _MAIN]
    base = next((base for base in bases if base), name)
    changed = _git(root, "diff", "--name-only", base).splitlines()
    if base == name:
        # Where history was cut off, and where it begins, a commit would have changed all files there are.
        log = ("-c", "log.showRoot=false", "log", "--name-only", "--format=", f"--since={time - _DAY}")
        changed += _git(root, *log).splitlines()
    return Commit(name[:10], time // _DAY + int(name[:8], 16), sorted({*changed} - {""}), base != name)


def choose(rest: Sequence[Rest], commit: Commit, seconds: int) -> Turns:
    """Those whose files have changed, and of the others as many as fit, beginning with the group whose turn it is."""
    turns = Turns()
    in_turn = _in_turn(rest, commit.number, seconds)
    reasons = {part: part.asked_for_by(commit.changed) for part in in_turn}
    for part in sorted(in_turn, key=lambda part: reasons[part] is None):
        file = reasons[part]
        if turns.seconds + part.seconds <= seconds or (file and commit.is_branch):
            turns.chosen[part] = f"{file} has changed" if file else "its turn"
        else:
            turns.left_out.append(part)
    return turns


def told(turns: Turns, commit: Commit, seconds: int) -> str:
    """What runs and why, and the commands for what does not."""
    lines = [f"== turns of commit {commit.name}: {turns.seconds} of {seconds} s"]
    lines += [f"{part.seconds:4} s  {part.name}: {reason}" for part, reason in turns.chosen.items()]
    lines += [f"left out: {part.command}" for part in turns.left_out]
    return "\n".join(lines)


def _in_turn(rest: Sequence[Rest], number: int, seconds: int) -> list[Rest]:
    """All of ``rest``, beginning with the group that ``number`` chooses."""
    groups: list[list[Rest]] = [[]]
    for part in rest:
        if groups[-1] and sum(each.seconds for each in groups[-1]) + part.seconds > seconds:
            groups.append([])
        groups[-1].append(part)
    first = number % len(groups)
    return [part for group in (*groups[first:], *groups[:first]) for part in group]


def _git(root: Path, *arguments: str) -> str:
    """What git prints; nothing if it fails, or is not there."""
    try:
        result = subprocess.run(["git", *arguments], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    return result.stdout.decode() if result.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
