# SPDX-License-Identifier: Apache-2.0
"""What has been measured, in a file from which a run that was cut off goes on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.language.measure import Group, Plan, Step
from benchmarks.language.ways import Outcome


class Outcomes:
    """The groups of a file.

    Args:
        path: Lines of JSON: what was measured, then for the same questions the groups of all ways.
        setting: What is measured, on which machine.

    Raises:
        ValueError: the file has results of another setting.
    """

    def __init__(self, path: Path, setting: Mapping[str, Any]) -> None:
        self._path = path
        wanted, text = json.dumps(setting), path.read_text() if path.is_file() else ""
        # A run that was cut off may have ended within a line.
        whole = text[: text.rfind("\n") + 1] or f"{wanted}\n"
        first, *others = whole.splitlines()
        if json.loads(first) != setting:
            raise ValueError(f"{path} has results of {first}, not of {wanted}; delete it, or give another --output")
        if whole != text:
            path.write_text(whole)
        self.groups: list[Group] = [_group(record) for line in others for record in json.loads(line)]

    def add(self, groups: Sequence[Group]) -> None:
        """Keep what all ways have taken for the same questions."""
        self.groups += groups
        records = [{**asdict(each), "steps": [list(vars(step).values()) for step in each.steps]} for each in groups]
        with self._path.open("a") as file:
            print(json.dumps(records), file=file, flush=True)

    def lacking(self, side: str, plan: Plan) -> Plan:
        """What of the ``plan`` has not been measured."""
        known = {(each.size, each.questions) for each in self.groups if each.side == side}
        return [(size, questions) for size, questions in plan if (size, tuple(questions)) not in known]


def _group(record: Mapping[str, Any]) -> Group:
    outcomes = tuple(
        Outcome(**{**each, "starts": tuple(each["starts"]), "lengths": tuple(each["lengths"])})
        for each in record["outcomes"]
    )
    return Group(**{**record, "outcomes": outcomes, "steps": tuple(Step(*step) for step in record["steps"])})
