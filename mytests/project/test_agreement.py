# SPDX-License-Identifier: Apache-2.0
"""What `examples/agreement.py` says about two files of answers. `make agreement` lets both vLLMs answer."""

from copy import deepcopy
from typing import Any

import pytest
from agreement import report

JOIN = {"position": 2, "num_merged": 1, "num_cut": 0, "num_context": 9, "num_prefill": 2, "error": None}
CHILD = {"position": 2, "prefix": [5], "tokens": [7, 2], "result": [7], "finish_reason": "stop", "children": []}
ANSWER: dict[str, Any] = {"prompt": "p", "tokens": [6, 3, 7], "children": [CHILD], "segments": [], "joins": [JOIN]}


def test_equal_answers_agree(capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 0, and the counts say how much was compared."""
    answers = {"sync": [ANSWER, ANSWER]}
    assert report(answers, deepcopy(answers)) == 0
    said = capsys.readouterr().out
    assert said == "sync: 2 prompts, 2 identical; 6 output tokens, 2 children, 2 joins\n"


def test_the_first_difference_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With the prompt and the place; a prompt or a mode that is missing is one, too."""
    other = deepcopy(ANSWER)
    other["children"][0]["tokens"][1] = 8
    assert report({"sync": [ANSWER, ANSWER]}, {"sync": [ANSWER, other]}) == 1
    assert "first difference: prompt 1, children[0].tokens[1]: 2 and 8" in capsys.readouterr().out
    for others in ({"sync": [ANSWER]}, {}):
        assert report({"sync": [ANSWER] * 2}, others) == 1
