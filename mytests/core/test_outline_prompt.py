# SPDX-License-Identifier: Apache-2.0
"""What an operator may change about outlines."""

import gc
import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mytests.harness.outline_requests import Request, constrained, hooks
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.serving.outlines.answer import OutlineAnswer
from sequence_hooks.serving.outlines.forms import Chat
from sequence_hooks.serving.outlines.requests import Asking, asking


def written(folder: Path, given: Any) -> str:
    """The path of a JSON file with this."""
    path = folder / f"{uuid4().hex}.json"
    path.write_text(json.dumps(given))
    return str(path)


class TestOperator:
    """What the fields of `SpecialKwargs` change."""

    def test_a_file_says_how_a_model_is_asked(self, tmp_path: Path) -> None:
        """What it has not, stays."""
        examples = [{"question": "a?", "answer": "1. b\n2. c\n###"}]
        path = written(tmp_path, {"examples": examples, "outline": "List {points}."})
        found = asking(Chat(Request(skeleton=True, conclusion=True)), hooks(outline_prompt=path), constrained)
        assert found is not None
        texts = [each["content"] for each in found.request.messages]
        assert texts[:2] == ["a?\n\nList 10 points.", "1. b\n2. c\n###"]
        assert texts[2] == "why?\n\nList 10 points. After ### write a conclusion of one or two sentences."
        assert hooks(outline_prompt=written(tmp_path, {"always": "x"})).outline_prompt is not None

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                b'{"exampels": []}',
                "unknown field `exampels`; give the path of a JSON object with some of examples, outline",
            ),
            (b"[]", "Expected `object`, got `array`"),
            (b'{"outline": " "}', "`$.outline`"),
            (b'{"always": "\\ud800"}', "truncated"),
            (b'{"examples": [{"question": "a"}]}', "missing required field `answer` - at `$.examples[0]`"),
            (b'{"examples": ["a"]}', "`$.examples[0]`"),
            (b'{"examples": [{"question": "a", "answer": 5}]}', "`$.examples[0].answer`"),
            (b'{"examples": [{"question": "a", "answer": "1. b"}]}', "'1. b' is an outline without a last line ###"),
        ],
    )
    def test_what_the_file_cannot_have_is_refused(self, tmp_path: Path, given: bytes, message: str) -> None:
        """When the hooks are made."""
        path = tmp_path / "asking.json"
        path.write_bytes(given)
        with pytest.raises(ValueError, match=rf"outline_prompt is .*; it cannot be read: .*{re.escape(message)}"):
            hooks(outline_prompt=str(path))

    @pytest.mark.parametrize(
        ("path", "message"), [(5, "5; give the path of a JSON file, as a string"), ("none.json", "cannot be read")]
    )
    def test_it_has_to_be_there(self, path: Any, message: str) -> None:
        """And JSON."""
        with pytest.raises(ValueError, match=f"outline_prompt is .*{message}"):
            hooks(outline_prompt=path)

    @pytest.mark.parametrize("field", ["outline_prompt", "max_outlines"])
    def test_other_hooks_have_no_outlines(self, tmp_path: Path, field: str) -> None:
        """Who expects them is told."""
        given = {"outline_prompt": written(tmp_path, {}), "max_outlines": 3}
        with pytest.raises(ValueError, match=rf"{field} is .*; leave it out, or set protocol='skeleton'"):
            SpecialKwargs(promise_token_id=1, **{field: given[field]})  # type: ignore[arg-type]

    def test_so_many_are_answered_by_outline_at_once(self) -> None:
        """One more is answered without, unless it has to have one; and one that has ended makes room."""
        gc.collect()
        special_kwargs = hooks(max_outlines=OutlineAnswer.num_open() + 1)

        def ask(**fields: Any) -> Asking | None:
            return asking(Chat(Request(**fields)), special_kwargs, constrained)

        first = ask(skeleton=True)
        assert first is not None and ask(skeleton=True) is None
        assert ask(skeleton="always") is not None and ask(outline=["a"]) is not None
        first.answer.has_ended = True
        assert ask(skeleton=True) is not None
