# SPDX-License-Identifier: Apache-2.0
"""What imports what, among tests, their helpers and benchmarks; imports within functions count too."""

from collections.abc import Iterator

import pytest
from grimp import ImportGraph, build_graph


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
