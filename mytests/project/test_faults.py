# SPDX-License-Identifier: Apache-2.0
"""The list of planted faults is right: places and nets exist, and each trap has a fault or a reason to have none."""

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from mytests.fuzz.faults import FAULTS, NOT_PLANTED, Fault, faults_of
from mytests.fuzz.faults.fault import Edit, surgical
from mytests.fuzz.faults.places import edited, function_in, parted
from mytests.fuzz.faults.planting import planted
from mytests.fuzz.faults.report import SURVIVES, merged, page, summary, write
from mytests.fuzz.faults.running import Row
from sequence_hooks.tree.merge import num_tokens

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/internals/plugin.md").read_text().split("## Traps in upstream")[1].split("## ")[0]
TRAPS = re.findall(r"^\| (?!what upstream does|---)(.*?) \|", TABLE, flags=re.M)


def source(place: str, fault: Fault) -> str | None:
    """The source of a place's module; None if it is the stock vLLM's, which is in the other environment."""
    if place.startswith("vllm.") and "plugin" in fault.engines:
        return None
    name = parted(place)[0].replace(".", "/") + ".py"
    own = ROOT / name
    return (own if own.exists() else ROOT / "vllm/_upstream" / Path(name).relative_to("vllm")).read_text()


@cache
def nodes_of(path: Path) -> dict[str, ast.AST]:
    """The tests and classes of a file, as node ids name them."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{item.name}": item for item in node.body if isinstance(item, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.id}-{fault.engines[0]}")
class TestList:
    def test_its_places_exist(self, fault: Fault) -> None:
        """And what is replaced is there exactly once, so that the fault is what it says."""
        for place in {edit.place for edit in fault.edits}:
            text = source(place, fault)
            if text is None:
                continue
            edits = [edit for edit in fault.edits if edit.place == place]
            changed = edited(text, edits)
            assert ast.dump(function_in(changed, place)) != ast.dump(function_in(text, place))

    def test_its_nets_exist(self, fault: Fault) -> None:
        """Files, tests, and the cases that are named by their ids."""
        assert fault.nets
        for net in fault.nets:
            file, _, name = net.node.partition("::")
            name, _, case = name.partition("[")
            assert (ROOT / file).is_file()
            assert not name or name in nodes_of(ROOT / file)
            assert not case or f'id="{case[:-1]}"' in (ROOT / file).read_text()

    def test_it_says_what_would_go_wrong(self, fault: Fault) -> None:
        """In a sentence, on every engine that it names, and what it does not plant its nets do."""
        assert re.fullmatch(r"[A-Z].*\.", fault.wrong)
        assert fault.edits or all(net.plants for net in fault.nets)
        assert all(fault.nets_on(engine) for engine in fault.engines)


def test_ids_are_unique() -> None:
    """In each engine; the same fault of both may have one name."""
    for faults in (faults_of("fork"), faults_of("plugin")):
        names = [fault.id for fault in faults]
        assert len(set(names)) == len(names)


def test_every_trap_has_a_fault_or_a_reason() -> None:
    """Of the table of plugin.md, whose rows begin with what upstream does."""
    named = [*(fault.trap for fault in FAULTS if fault.trap), *NOT_PLANTED]
    assert len(TRAPS) > 20
    assert [trap for trap in TRAPS if not any(trap.startswith(name) for name in named)] == []
    assert [name for name in named if not any(trap.startswith(name) for trap in TRAPS)] == []


class TestPlanting:
    FAULT = Fault("none", (Edit("sequence_hooks.tree.merge:num_tokens", "", "return -1"),), "It counts wrongly.", ())

    def test_it_is_there_wherever_the_function_was_imported(self) -> None:
        """And afterwards it is gone."""
        with planted(self.FAULT):
            assert num_tokens([]) == -1
        assert num_tokens([]) == 0

    @pytest.mark.parametrize(
        ("edit", "reason"),
        [
            (Edit("sequence_hooks.tree.merge:no_such_function", "", "pass"), "0 functions have this name"),
            (Edit("sequence_hooks.tree.merge:num_tokens", "no such text", "pass"), "has 0 times 'no such text'"),
        ],
    )
    def test_what_is_not_there_is_told(self, edit: Edit, reason: str) -> None:
        """So that a fault does not survive because it was never planted."""
        with pytest.raises(LookupError, match=reason), planted(dataclasses.replace(self.FAULT, edits=(edit,))):
            raise AssertionError


class TestReport:
    ROW = Row("fork", "a", "It is wrong.", "surgical", "mytests/test_a.py", "mytests/test_a.py::test_a", False, 0.5)
    SURVIVOR = Row("fork", "b", "It is wrong, too.", "fuzz", "mytests/test_b.py", None, False, 2.0)

    def test_a_survivor_is_named(self) -> None:
        """In the line above the table, and with the net that let it pass."""
        text = page([self.ROW, self.SURVIVOR], {"a trap": "No edit undoes it."})
        assert summary([self.ROW, self.SURVIVOR]) in text
        assert summary([self.ROW, self.SURVIVOR]).endswith(f"fuzz 0 of 1; {SURVIVES}: b.")
        assert "| a | It is wrong. | `make test` | `mytests/test_a.py::test_a` |  |  |" in text
        assert f"| b | It is wrong, too. | none |  |  | {SURVIVES}: `mytests/test_b.py` |" in text
        assert "- *a trap*: No edit undoes it." in text

    def test_the_command_that_notices_it_is_told(self) -> None:
        """That is `make test` unless all the tests that have failed are marked "full"."""
        full = dataclasses.replace(self.ROW, is_full=True)
        assert summary([full]).startswith("1 faults, noticed: 1 by `make test-all` alone.")
        assert summary([full, self.ROW]).startswith("1 faults, noticed: 1 by `make test`.")

    def test_a_run_renews_its_own_faults(self, tmp_path: Path) -> None:
        """Those of the other engine stay."""
        path = tmp_path / "faults.json"
        assert merged(path, [self.ROW]) == [self.ROW]
        others = dataclasses.replace(self.ROW, engine="plugin")
        write(tmp_path, [self.ROW, others], {})
        renewed = dataclasses.replace(self.ROW, seconds=1.0)
        assert merged(path, [renewed]) == [renewed, others]


def test_a_net_runs_where_it_can_be_imported() -> None:
    """Rules run on both engines."""
    nets = surgical("mytests/rules/test_text.py", "mytests/v1/test_forks.py", "mytests/v0/test_sampling.py")
    fault = dataclasses.replace(TestPlanting.FAULT, nets=nets)
    assert fault.nets_on("fork") == (nets[0], nets[2])
    assert fault.nets_on("plugin") == nets[:2]
