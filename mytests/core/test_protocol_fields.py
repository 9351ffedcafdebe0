# SPDX-License-Identifier: Apache-2.0
"""Protocols by name, and the fields that they brought: texts of children, contexts, triggers."""

import dataclasses
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mytests.harness.plain import Derived, Tokenizer
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.notations import GROUP, notation_of, one_token_tags, protocols
from sequence_hooks.config.tokens import needs_tokenizer, with_token_ids
from sequence_hooks.handlers import Actions, Spawn, TokenEvent
from sequence_hooks.handlers.builtin import make_handlers
from sequence_hooks.protocols import multiverse, npr
from sequence_hooks.protocols.fan_out import Tags
from sequence_hooks.protocols.tags import text_since
from sequence_hooks.text.encoding import single_token


class Tagged(Tokenizer):
    """Knows the tags of two protocols too."""

    def get_vocab(self) -> dict[str, int]:
        tags = ["<FORK>", "<CHILD>", "<|im_end|>", "[fork]"]
        return {**super().get_vocab(), **{tag: 300 + index for index, tag in enumerate(tags)}}


@pytest.mark.parametrize("protocol", protocols())
def test_a_word_is_a_whole_configuration(protocol: str) -> None:
    """That is valid, can be sent to another process, and needs a tokenizer for its tags."""
    fields: dict[str, Any] = {"protocol": protocol, **dict.fromkeys(notation_of(protocol).required, "<fork>")}
    special_kwargs = SpecialKwargs(**fields)
    assert pickle.loads(pickle.dumps(special_kwargs)) == special_kwargs
    assert dataclasses.replace(special_kwargs) == special_kwargs
    assert Derived.of(special_kwargs) == Derived.of(fields)
    assert needs_tokenizer(special_kwargs)


def test_a_field_that_no_one_published_is_asked_for() -> None:
    """The error says why, and what to give; an id will do."""
    with pytest.raises(ValueError) as error:
        SpecialKwargs(protocol="padoc")
    assert str(error.value) == (
        "special_kwargs: promise_token is None; protocol 'padoc' needs it: no public checkpoint tells the text of its "
        "fork token; give that of your model's, or promise_token_id"
    )
    by_id = SpecialKwargs(protocol="padoc", promise_token_id=7)
    assert (by_id.promise_token_id, needs_tokenizer(by_id)) == (7, False)


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        ("hpd", {"max_running_children": 64, "max_children": 1024, "max_tree_sequences": 1025}),
        ("padoc", {"promise_token": "<fork>", "max_children": 255, "max_tree_sequences": 256}),
        ("multiverse", {"max_children": 20, "max_child_depth": 6}),
        ("npr", {"max_child_depth": 6, "child_sampling_params": {"repetition_penalty": 1.02}}),
        ("threadweaver", {"max_children": 50, "max_child_depth": 1}),
    ],
)
def test_limits_are_those_of_its_authors(protocol: str, fields: dict[str, Any]) -> None:
    """`docs/protocols.md` says where each of them stands."""
    special_kwargs = SpecialKwargs(**{"protocol": protocol, **fields})
    notation = notation_of(protocol)
    given = {name: value for name, value in fields.items() if name not in notation.required}
    assert {name: notation.fields.get(name, getattr(SpecialKwargs, name)) for name in given} == given
    assert {name: getattr(special_kwargs, name) for name in fields} == fields


def test_the_tags_of_a_handler_need_a_tokenizer() -> None:
    """Even where its hook is given by id: the handler reads and writes them."""
    assert needs_tokenizer(SpecialKwargs(protocol="npr", handlers={5: "sequence_hooks.protocols.npr.handler"}))


def test_fields_beside_it_override_it() -> None:
    """Also with what is a field's default."""
    assert SpecialKwargs(protocol="hpd").max_children == 1024
    assert SpecialKwargs(protocol="hpd", max_children=16).max_children == 16
    assert SpecialKwargs.of({"protocol": "multiverse", "max_child_depth": 1}) == SpecialKwargs(
        protocol="multiverse", max_child_depth=1
    )
    by_id = SpecialKwargs(protocol="hpd", promise_token_id=7, child_prefix_token_ids=(8,))
    assert (by_id.promise_token, by_id.promise_token_id, by_id.child_prefix) == (None, 7, None)


def test_another_word_is_refused() -> None:
    """The error lists those that there are."""
    with pytest.raises(ValueError, match=r"protocol is 'nrp'; use one of apr, asyncthink, hpd, multiverse, npr, "):
        SpecialKwargs(protocol="nrp")


def test_all_of_its_tags_are_tokens() -> None:
    """And not the hook's alone; the error names tag, tokens and way out."""
    hooks = with_token_ids(SpecialKwargs(protocol="hpd"), Tagged())
    assert (hooks.protocol, hooks.promise_token_id, hooks.child_prefix_token_ids) == (None, 300, (301,))
    assert hooks.child_sampling_params == {"stop_token_ids": [302]}
    with pytest.raises(ValueError) as error:
        with_token_ids(SpecialKwargs(protocol="parallel_r1"), Tagged())
    assert str(error.value) == (
        "special_kwargs: protocol 'parallel_r1' has the tag '<Parallel>', which is 10 tokens [60, 80, 97, 114, 97, "
        "108, 108, 101, 108, 62] of the model's tokenizer; use a model that was trained for the protocol, or add its "
        "tags to the tokenizer as special tokens"
    )


def test_a_tag_that_is_replaced_need_not_exist() -> None:
    """Nor any, if triggers are texts."""
    assert one_token_tags(SpecialKwargs(protocol="padoc", promise_token="x")) == []
    assert one_token_tags(SpecialKwargs(protocol="npr", trigger_by="text")) == []
    assert one_token_tags(SpecialKwargs(promise_token="x")) == []
    assert "</step>" in one_token_tags(SpecialKwargs(protocol="npr"))


def test_children_begin_and_end_with_texts() -> None:
    """A text that is one token ends a child as a token, another as a string."""
    hooks = SpecialKwargs(promise_token_id=1, child_prefix="ab", child_stop=["<sync>", "no"])
    resolved = with_token_ids(hooks, Tokenizer())
    assert resolved.child_prefix_token_ids == (ord("a"), ord("b"))
    assert resolved.child_sampling_params == {"stop_token_ids": [201], "stop": ["no"]}
    several = SpecialKwargs(promise_token_id=1, children_per_promise=2, child_prefix=["a", "bc"])
    assert with_token_ids(several, Tokenizer()).child_prefix_token_ids == ((ord("a"),), (ord("b"), ord("c")))
    beside = SpecialKwargs(promise_token_id=1, child_stop="<sync>", child_sampling_params={"temperature": 0.5})
    assert with_token_ids(beside, Tokenizer()).child_sampling_params == {"temperature": 0.5, "stop_token_ids": [201]}


@pytest.mark.parametrize("name", ["child_prefix", "child_stop"])
def test_texts_that_cannot_be_spelled_are_refused(name: str) -> None:
    """A child would begin with an unknown token, or never end."""
    fields: dict[str, Any] = {"promise_token_id": 1, name: ["a\x00"]}
    hooks = SpecialKwargs(**fields)
    with pytest.raises(ValueError, match=rf"{name} has 'a\\x00', which the model's tokenizer cannot spell: its tokens"):
        with_token_ids(hooks, Tokenizer())


def test_triggers_stay_texts() -> None:
    """Of as many tokens as they are."""
    resolved = with_token_ids(SpecialKwargs(promise_token="go", sync_token="wait", trigger_by="text"), Tokenizer())
    assert (resolved.promise_token, resolved.sync_token) == ("go", "wait")
    assert list(make_handlers(resolved, None)) == ["go", "wait"]


def test_a_promise_asks_for_the_configured_children() -> None:
    """With their contexts, detached or not."""
    hooks = SpecialKwargs(promise_token_id=1, block_on="never", child_context="none", child_prefix_token_ids=(5,))
    (promise,) = make_handlers(hooks, None).values()
    assert promise.on_token(None) == Actions((Spawn((5,), None, "none", True),))  # type: ignore[arg-type]


def test_a_file_may_have_the_fields(tmp_path: Path) -> None:
    """Given as ``@path``, wherever a JSON object may be given."""
    path = tmp_path / "hooks.json"
    path.write_text('{"protocol": "npr"}')
    assert SpecialKwargs.from_json(f"@{path}") == SpecialKwargs(protocol="npr")
    with pytest.raises(ValueError, match=r"@.*missing.json' cannot be read: .*; give an existing file"):
        SpecialKwargs.from_json(f"@{tmp_path / 'missing.json'}")


@pytest.mark.parametrize("length", [3, 300, 5000])
def test_the_last_tag_is_found_however_far_back_it_is(length: int) -> None:
    """No more of the context is read than it takes; None if it has none."""
    context = [ord(character) for character in f"<a>x<a>{'y' * length}"]
    assert text_since("<a>", context, Tagged()) == "y" * length
    assert text_since("<b>", context, Tagged()) is None


@pytest.mark.parametrize(("protocol", "tags"), [("multiverse", multiverse.TAGS), ("npr", npr.TAGS)])
def test_the_tags_of_a_handler_are_one_token_each(protocol: str, tags: Tags) -> None:
    """Its fields name them as the handler does, which is asked where the block of plans closes."""
    assert set(tags.all) < set(notation_of(protocol).one_token)
    assert list(notation_of(protocol).fields["handlers"]) == [tags.closes_plans]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution with a notation, whose module has this code."""

    def install(code: str, name: str = "other") -> None:
        (tmp_path / "other_notation.py").write_text(code)
        metadata = tmp_path / "other-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = other_notation:NOTATION\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "other_notation", raising=False)

    return install


def test_a_notation_may_come_from_outside(outside: Callable[..., None]) -> None:
    """Its name then stands for its fields, and is among those that an error lists."""
    outside(
        "from sequence_hooks.config.notations import Notation\n"
        "NOTATION = Notation(fields={'promise_token': '<go>', 'max_children': 3}, one_token=('<go>',))"
    )
    special_kwargs = SpecialKwargs(protocol="other", block_on="sync")
    found = special_kwargs.promise_token, special_kwargs.max_children, special_kwargs.block_on
    assert (found, one_token_tags(special_kwargs)) == (("<go>", 3, "sync"), ["<go>"])
    with pytest.raises(ValueError, match=r"protocol is 'another'; use one of .*npr, other, padoc"):
        SpecialKwargs(protocol="another")


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("import nothing_of_this_name", "other", "and other_notation:NOTATION cannot be imported: Mod.*; correct it"),
        ("NOTATION = {}", "other", "and other_notation:NOTATION is {}; its entry point has to name a .*.Notation"),
        # Which of two is meant cannot be told; the order of a path does not decide it.
        ("", "npr", "the name of other_notation:NOTATION and of sequence_hooks.protocols.npr"),
    ],
)
def test_a_notation_that_cannot_be_used_is_refused(
    outside: Callable[..., None], code: str, name: str, message: str
) -> None:
    """By its name; the others can be used."""
    outside(code, name)
    with pytest.raises(ValueError, match=f"protocol is '{name}', {message}"):
        SpecialKwargs(protocol=name)
    assert SpecialKwargs(protocol="multiverse").injects_kv


class Counting(Tagged):
    """Counts how often its vocabulary is made, and may get more tokens."""

    def __init__(self) -> None:
        self.num_made = 0
        self.added: dict[str, int] = {}

    def __len__(self) -> int:
        return 304 + len(self.added)

    def get_vocab(self) -> dict[str, int]:
        self.num_made += 1
        return {**super().get_vocab(), **self.added}

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, token_ids))


class TestVocabulary:
    def test_it_is_made_once_for_all_plans(self) -> None:
        """A vocabulary of a real size takes a tenth of a second."""
        tokenizer = Counting()
        handler = npr.handler(tokenizer)
        token_ids = [*map(ord, "<guideline><plan>1:a</plan><plan>2:b</plan><plan>3:c</plan></guideline>")]
        event = TokenEvent(token_ids[-1], "r", (), tuple(token_ids[:-1]), 0, 0, 1)
        assert [len(handler.on_token(event).spawn) for _ in range(2)] == [3, 3]
        assert tokenizer.num_made == 1

    def test_tokens_that_are_added_are_found(self) -> None:
        """It is made anew then."""
        tokenizer = Counting()
        assert single_token("<new>", tokenizer) is None
        tokenizer.added["<new>"] = 304
        assert single_token("<new>", tokenizer) == 304
        assert tokenizer.num_made == 2

    def test_a_tokenizer_is_not_kept(self) -> None:
        """Its vocabulary goes with it."""
        tokenizer = Counting()
        single_token("<FORK>", tokenizer)
        gone = weakref.ref(tokenizer)
        del tokenizer
        gc.collect()
        assert gone() is None
