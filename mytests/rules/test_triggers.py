# SPDX-License-Identifier: Apache-2.0
"""Hooks that are texts of several tokens."""

import dataclasses
from typing import Any

import pytest

from mytests.harness.handlers import Seeing, own
from mytests.harness.outcomes import Case, rules
from mytests.harness.spoken import engine_with, said
from mytests.harness.surgical import PROMISE, SYNC, SYNC_HOOKS, Prompts, SpecialKwargs, SurgicalEngine, completed, ids


def hooks_with(**fields: Any) -> SpecialKwargs:
    """``<go>`` spawns, ``<wait>`` blocks; each is as many tokens as it has characters."""
    texts = {"promise_token_id": None, "sync_token_id": None, "promise_token": "<go>", "sync_token": "<wait>"}
    return dataclasses.replace(SYNC_HOOKS, **{**texts, "trigger_by": "text", "merge_separator": "", **fields})


@pytest.mark.rule(11)
class TestTexts:
    def test_it_fires_at_the_token_that_completes_it(self) -> None:
        """The child's context has all of it, and the parent goes on after it."""
        prompts: Prompts = {}
        output = completed(SurgicalEngine(hooks_with(), prompts=prompts), r="a<go>b<wait>z", r_child_0="xy")
        assert output.text == "a<go>b<wait>xyz"
        assert prompts["r_child_0"] == ids("prompta<go>")
        assert [child.spawn_position for child in output.children] == [len("a<go>")]

    @rules(
        {
            "once each": Case(hooks_with(), "<go><go>go><wait>z", "x", "y", of_children=["x", "y"]),
            "not within a prompt": Case(hooks_with(), "o>z", prompt="<go><g", children=()),
            "not across a merge": Case(hooks_with(), "<go><wait>o>z<g", "<g", text="<go><wait><go>z<g", num_children=1),
            "after a merge": Case(hooks_with(), "<go><wait><go><wait>z", "abc", "d", text="<go><wait>abc<go><wait>dz"),
            "not with a stop string": Case(hooks_with(), "a<go>z", params={"stop": ["o>"]}, text="a<g", children=()),
            "not with hooks off": Case(hooks_with(), "<go>z", params={"extra_args": {"hooks": 0}}, children=()),
        }
    )
    def test_it_fires(self, case: Case) -> None:
        """Where a sequence has sampled all of it, unless its last token ends the sequence."""
        case.check()

    @pytest.mark.rule(12)
    def test_the_context_before_it_has_none_of_its_tokens(self) -> None:
        """However many they are."""
        prompts: Prompts = {}
        hooks = hooks_with(child_context="before_trigger", child_prefix_token_ids=tuple(ids("#")))
        output = completed(SurgicalEngine(hooks, prompts=prompts), r="abc<go>d<wait>z", r_child_0="xy")
        assert prompts["r_child_0"] == ids("promptabc#")
        assert output.text == "abc<go>d<wait>xyz"

    def test_the_text_of_a_special_token_is_found(self) -> None:
        """Whether the request's own text has special tokens or not: here `<promise>` is one token."""
        engine = engine_with(promise_token_id=None, promise_token="<promise>", trigger_by="text")
        output = said(engine, r=["a", PROMISE, SYNC, "b"], r_child_0=["x"])
        assert (output.text, [child.text for child in output.children]) == ("axb", ["x"])

    @pytest.mark.parametrize(("skips", "text"), [(True, "axb"), (False, "a")])
    def test_a_stop_string_is_looked_for_in_the_requests_own_text(self, skips: bool, text: str) -> None:
        """Which has special tokens only if the request asks for them."""
        params = {"stop": ["<promise>"], "skip_special_tokens": skips}
        assert said(engine_with(), params, r=["a", PROMISE, SYNC, "b"], r_child_0=["x"]).text == text

    def test_a_handlers_event_counts_its_tokens(self) -> None:
        """The tokens before the last one include those that begin it."""
        engine = SurgicalEngine(hooks_with(handlers={"{do}": own("Seeing")}))
        Seeing.events.clear()
        completed(engine, prompt="p", r="a{do}z")
        (event,) = Seeing.events
        assert (event.token_id, event.num_trigger_tokens) == (ord("}"), 4)
        assert list(event.output_token_ids) == ids("a{do")
