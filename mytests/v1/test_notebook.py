# SPDX-License-Identifier: Apache-2.0
"""The notebook of the first hour runs from top to bottom, and prints what its text says."""

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from mytests.harness.environment import EXAMPLES

NOTEBOOK = f"{EXAMPLES}/first_hour.ipynb"


@pytest.fixture
def notebook() -> Any:
    """As it is committed."""
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def test_it_is_committed_without_outputs(notebook: Any) -> None:
    """Those of the last run would tell nothing but noise in each change."""
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and [cell for cell in code if cell.outputs or cell.execution_count] == []


@pytest.mark.model
@pytest.mark.full
def test_it_runs_from_top_to_bottom(notebook: Any) -> None:
    """With its trees, its merged results, and its pictures."""
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": EXAMPLES}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output.get("text", "") for output in outputs)
    told = (
        "1<promise>2<promise>3<promise><sync>enost\naelpp\neirrv\n= eae",
        "18 of 53 tokens in context prefilled",
        "1 <CHILD>enost\n2 <CHILD>aelpp\n3 <CHILD>eirrv\n",
        "abdekory",
        "run.html: for any browser",
    )
    assert [text for text in told if text not in printed] == []
    # The language model is there if its demo has run.
    assert ("In short," in printed) != ("run make merge-language" in printed)
