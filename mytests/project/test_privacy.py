# SPDX-License-Identifier: Apache-2.0
"""Who may import, read and write what: no circles, and private members stay private."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grimp import ImportGraph, build_graph

from sequence_hooks.config.limits import Limits
from sequence_hooks.tree.branch import Branch
from sequence_hooks.tree.child_spec import ChildSpec
from sequence_hooks.tree.tree import Tree

ROOT = Path(__file__).parents[2]
FILES = sorted(path for top in ("sequence_hooks", "vllm") for path in (ROOT / top).rglob("*.py"))
OURS = {path: ast.parse(path.read_text()) for path in FILES if "_upstream" not in path.parts}
REACH_INTO_UPSTREAM = {
    "sequence_hooks/v1/core/kv_groups.py",
    "sequence_hooks/v1/core/kv_manager.py",
    "sequence_hooks/v1/core/queues.py",
    "sequence_hooks/v1/core/requests.py",
    "sequence_hooks/v1/startup.py",
    "sequence_hooks/v1/plugin.py",
    "vllm/attention/backends/torch_sdpa.py",
    "vllm/core/sequence_data.py",
    "vllm/core/shared_blocks.py",
    "vllm/engine/async_llm_engine.py",
    "vllm/engine/output_processor/hook_stop_checker.py",
    "vllm/outputs.py",
    "vllm/worker/kv_slots.py",
}
NOT_UPSTREAMS = {"_exit", "_replace", "_scaled_dot_product_flash_attention_for_cpu"}
"""Of Python and of torch."""


def private_members(tree: ast.AST) -> Iterator[str]:
    """Of anything but ``self``, ``cls`` and ``super()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()"):
                yield node.attr


def defined_in(tree: ast.AST) -> set[str]:
    """Functions, and attributes of ``self`` that are assigned."""
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"}
    return functions | stored


def test_our_own_private_members_stay_in_their_modules() -> None:
    """What another module needs is public."""
    ours = {name for tree in OURS.values() for name in defined_in(tree) if name.startswith("_")}
    strays = {
        (str(path.relative_to(ROOT)), name)
        for path, tree in OURS.items()
        for name in set(private_members(tree)) & ours - defined_in(tree)
    }
    assert strays == set()


def test_upstreams_private_members_are_used_where_that_is_known() -> None:
    """A release that renames one breaks few files."""
    reaching = {
        str(path.relative_to(ROOT))
        for path, tree in OURS.items()
        if set(private_members(tree)) - defined_in(tree) - NOT_UPSTREAMS
    }
    assert reaching == REACH_INTO_UPSTREAM


def test_a_trees_state_is_written_by_its_owners_alone() -> None:
    """A `Branch` and its `Tree` by their own methods and by the `DependencyManager`."""
    root = Branch[Any](None, Tree(Limits()), None, None)
    fields = vars(root).keys() | vars(root.tree).keys()
    owners = {ROOT / "sequence_hooks" / "tree" / name for name in ("branch.py", "manager.py", "tree.py")}
    writes = {
        (str(path.relative_to(ROOT)), ast.unparse(node))
        for path, tree in OURS.items()
        if path not in owners
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields
        if ast.unparse(node.value).split(".")[-1] in ("branch", "child", "parent", "root", "tree")
    }
    assert writes == set()


def test_a_childs_spec_is_made_in_one_place() -> None:
    """So that a new field has one place where its value is decided; whoever else needs it gets the whole value."""
    making = {
        str(path.relative_to(ROOT))
        for path, tree in OURS.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == ChildSpec.__name__
    }
    assert making == {"sequence_hooks/tree/rules.py"}


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    """The imports of all modules."""
    return build_graph("mytests", "benchmarks", cache_dir=None)


def circles(graph: ImportGraph) -> Iterator[tuple[str, ...]]:
    """Each import that leads back to its module, with the shortest way back."""
    for module in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            back = graph.find_shortest_chain(imported, module)
            if back is not None:
                yield module, *back


def test_no_module_imports_itself_by_way_of_others(graph: ImportGraph) -> None:
    """So each can be read after those that it imports."""
    assert list(circles(graph)) == []


def test_nobody_imports_a_file_of_tests(graph: ImportGraph) -> None:
    """What several of them need is in a helper that is named after it."""
    tests = [module for module in sorted(graph.modules) if module.rpartition(".")[2].startswith("test_")]
    imported = {module: graph.find_modules_that_directly_import(module) for module in tests}
    assert len(tests) > 100
    assert {module: importers for module, importers in imported.items() if importers} == {}
