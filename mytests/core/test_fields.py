# SPDX-License-Identifier: Apache-2.0
"""`SpecialKwargs`: what a field accepts, what is refused, and how texts become token ids."""

import importlib
import json
import pickle
import sys
from typing import Any

import pytest

from mytests.harness.plain import Derived
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.tokens import check_vocabulary, needs_tokenizer, resolve, with_token_ids

JOIN = f"{__name__}.join"
HANDLER = f"{__name__}.make"
NOT_CALLABLE = f"{__name__}.JOIN"
FIELDS: dict[str, Any] = {"sync_token_id": 3, "promise_token_id": 2}
HOOKS = SpecialKwargs(**FIELDS)


def join(children: Any) -> str:
    """A join function."""
    return ""


def make(tokenizer: Any) -> None:
    """Stands for a handler's class."""


class WordTokenizer:
    """A tokenizer of words, some of which are one token."""

    unk_token_id = 0

    def get_vocab(self) -> dict[str, int]:
        return {"<sync>": 7, "<promise>": 8}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return {"fork": [9], "sync up": [3, 4]}.get(text, [0])

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join({9: "fork", 3: "sync", 4: "up"}.get(token_id, "?") for token_id in token_ids)


INJECT, NEVER = {"child_merge_strategy": "kv_inject"}, {"block_on": "never"}
NO_WAIT = "leave it out, as no sequence waits for detached children"
OVERRIDES = "give a SamplingParams, or a dict of its fields"
BAD_VALUES: list[tuple[Any, str]] = [
    ({"promise_token_id": 5}, "token 5 is given to two of .*; give each hook a token of its own"),
    ({"handlers": {5: HANDLER}}, "token 5 is given to two"),
    ({"sync_token_id": "5"}, "sync_token_id is '5'; give integers"),
    ({"promise_token": 5}, "promise_token is 5; give a string"),
    ({"sync_token": "<sync>"}, "sync_token is '<sync>'; leave it out, or sync_token_id"),
    ({"merge_separator": "\ud800"}, r"merge_separator is '\\ud800'; give a text that can be encoded as UTF-8"),
    ({"sync_token_id": None, "sync_token": "a\udfff"}, r"sync_token is 'a\\udfff'; give a text that can be"),
    ({"promise_token_id": None, "promise_token": "\udc80"}, "promise_token is .*; give a text that can be"),
    ({"handlers": {"\ud800": HANDLER}}, r"handlers is .*\\ud800.*; give a text that can be encoded"),
    ({"handlers": {9: "a.\ud800"}}, r"handlers has 'a.\\ud800', which cannot be imported"),
    ({"child_merge_strategy": "\ud800.a"}, r"child_merge_strategy has '\\ud800.a', which cannot be imported"),
    ({"live_page": 1}, "live_page is 1; use True or False"),
    ({"hooks_on_request": 1}, "hooks_on_request is 1; use True or False"),
    ({"record_to": 7}, "record_to is 7; give the path of a file, as a string"),
    ({"record_to": "\ud800"}, r"record_to is '\\ud800'; give a path that the file system can have"),
    ({"record_to": "a\0b"}, r"record_to is 'a\\x00b'; give a path that the file system can have"),
    ({"block_on": "always"}, "block_on is 'always'; use 'promise' or 'sync' or 'never'"),
    ({"sync_resume": "later"}, "sync_resume is 'later'; use 'auto' or 'manual'"),
    ({"blocked_kv_policy": "drop"}, "blocked_kv_policy is 'drop'; use 'preserve' or 'swap' or"),
    ({**INJECT, "position_rule": "both"}, "position_rule is 'both'; use 'sequential' or 'overlap'"),
    ({"position_rule": "overlap"}, "position_rule is 'overlap'; .*set child_merge_strategy='kv_inject'"),
    ({"child_merge_strategy": "none", "position_rule": "overlap"}, "position_rule is 'overlap'; .*set child_merge_st"),
    ({"max_tree_tokens": -1}, "max_tree_tokens is -1; use an integer of at least 1"),
    ({"max_children": 0}, "max_children is 0; use an integer of at least 1"),
    ({"unjoined_at_end": "drop"}, "unjoined_at_end is 'drop'; use 'join' or 'cancel'"),
    ({**NEVER, "unjoined_at_end": "cancel"}, f"unjoined_at_end is 'cancel'; {NO_WAIT}"),
    ({"join_when": 0}, "join_when is 0; use an integer of at least 1"),
    ({**NEVER, "join_when": 2}, f"join_when is 2; {NO_WAIT}"),
    ({"max_running_children": 0}, "max_running_children is 0; use an integer of at least 1"),
    ({"max_children": True}, "max_children is True; use an integer of at least 1"),
    ({"max_child_depth": -1}, "max_child_depth is -1; use an integer of at least 0"),
    ({"children_per_promise": 0}, "children_per_promise is 0; use an integer of at least 1"),
    ({"children_per_promise": 17}, "children_per_promise is 17; raise max_children, which is 16"),
    ({"child_prefix_token_ids": 4}, "child_prefix_token_ids is 4; give a list of token ids"),
    ({"child_prefix_token_ids": ["a"]}, r"child_prefix_token_ids is \('a',\); give integers"),
    ({"child_prefix_token_ids": [[4], [5]]}, "give one tuple of ids, or 1 of them"),
    ({"child_prefix_token_ids": [[4], 5]}, "give a list of token ids, or a list of such lists"),
    ({"handlers": "fork"}, "handlers is 'fork'; give a dict of qualified names by token id or text"),
    ({"handlers": 5}, "handlers is 5; give a dict"),
    ({"handlers": [5]}, r"handlers is \[5\]; give a dict"),
    ({"handlers": [[1.5, HANDLER]]}, "handlers is .*; give a dict"),
    ({"merge_separator": 7}, "merge_separator is 7; give a string"),
    ({"trigger_by": "word"}, "trigger_by is 'word'; use 'token' or 'text'"),
    ({"child_context": "mine"}, "child_context is 'mine'; use 'parent' or 'before_trigger' or 'none'"),
    ({"promise_token_id": 1, "child_context": "none"}, "child_context is 'none'; give each child a child_prefix"),
    ({"child_prefix": 5}, "child_prefix is 5; give a text, or a list of texts"),
    ({"child_prefix": []}, r"child_prefix is \(\); give a text, or a list of texts"),
    ({"child_prefix": ""}, "child_prefix is ''; give texts of one character at least"),
    ({"child_prefix": ["a", "b"]}, r"child_prefix is \('a', 'b'\); give one text, or 1 of them"),
    ({"child_prefix": "a", "child_prefix_token_ids": [5]}, "child_prefix is 'a'; leave it out, or child_prefix_t"),
    ({"child_prefix": "\ud800"}, "child_prefix is .*; give a text that can be encoded as UTF-8"),
    ({"child_stop": [5]}, r"child_stop is \(5,\); give a text, or a list of texts"),
    ({"child_stop": "a", "child_sampling_params": {"stop": ["b"]}}, "child_stop is 'a'; leave it out, or stop"),
    ({**INJECT, "block_on": "never"}, "child_merge_strategy is 'kv_inject'; use 'conc"),
    ({"promise_token_id": None, "promise_token": ""}, "a hook is given by the text '', which has no token"),
    *(
        ({"child_sampling_params": each}, f"child_sampling_params is .*{OVERRIDES}")
        for each in (5, "hot", ("temperature", 1))
    ),
    ({"child_merge_strategy": "sum"}, "has 'sum'; use 'concatenate' or .* or 'none' or the qualified name"),
    ({"child_merge_strategy": "mytests.nowhere.f"}, "has 'mytests.nowhere.f', which cannot be imported"),
    ({"child_merge_strategy": "mytests.core.test_fields.missing"}, "which cannot be imported .*missing"),
    ({"child_merge_strategy": NOT_CALLABLE}, f"has '{NOT_CALLABLE}', which is not a function"),
    ({"handlers": {6: 7}}, "handlers has 7; use the qualified name"),
    ({"handlers": {6: "concatenate"}}, "handlers has 'concatenate'; use the qualified name"),
]


class TestFields:
    @pytest.mark.rule(19)
    @pytest.mark.parametrize(("fields", "message"), BAD_VALUES)
    def test_a_bad_value_is_refused(self, fields: dict[str, object], message: str) -> None:
        """The error names the field, its value and the way out; user-defined code is looked up, too."""
        with pytest.raises(ValueError, match=message):
            SpecialKwargs.of({"sync_token_id": 5, **fields})

    @pytest.mark.parametrize(
        ("names", "told"),
        [
            (
                ["promise_tok"],
                r"no field promise_tok \(did you mean promise_token\?\); the fields are max_child_depth, ",
            ),
            (["maxChildren"], r"no field maxChildren \(did you mean max_children\?\); "),
            (["sync_tokenid"], r"no field sync_tokenid \(did you mean sync_token_id\?\); "),
            (["zzz", "child-stop"], r"no field child-stop \(did you mean child_stop\?\), zzz; the fields are "),
        ],
    )
    def test_a_name_that_is_no_field_is_refused(self, names: list[str], told: str) -> None:
        """With what may have been meant, as an argument and in a mapping."""
        given: dict[str, Any] = {"sync_token_id": 5, **dict.fromkeys(names, 1)}
        for make in (lambda: SpecialKwargs(**given), lambda: SpecialKwargs.of(given)):
            with pytest.raises(ValueError, match=told):
                make()

    def test_a_name_that_is_no_text_is_refused(self) -> None:
        """A dict may have one."""
        with pytest.raises(ValueError, match="no field 5; the fields are "):
            SpecialKwargs.of({5: 1})  # type: ignore[dict-item]

    def test_a_hook_is_needed(self) -> None:
        """Without any token there is nothing to hook."""
        with pytest.raises(ValueError, match="set sync_token_id, promise_token_id, handlers"):
            SpecialKwargs()

    def test_a_name_may_be_in_a_module_that_nobody_has_imported(self) -> None:
        """Its package being imported is not enough: a qualified name says where the module ends."""
        sys.modules.pop("wsgiref.util", None)
        vars(importlib.import_module("wsgiref")).pop("util", None)
        hooks = SpecialKwargs(sync_token_id=3, child_merge_strategy="wsgiref.util.guess_scheme")
        assert hooks.child_merge_strategy == "wsgiref.util.guess_scheme"

    def test_one_prefix_for_all_or_one_for_each(self) -> None:
        """Both give each child of a promise its prefix."""
        shared = SpecialKwargs(promise_token_id=5, children_per_promise=2, child_prefix_token_ids=(8, 9))
        each = SpecialKwargs(promise_token_id=5, children_per_promise=2, child_prefix_token_ids=((8,), (9,)))
        assert shared.child_prefixes == ((8, 9), (8, 9))
        assert each.child_prefixes == ((8,), (9,))


class TestForms:
    def test_a_dict_an_object_and_json_mean_the_same(self) -> None:
        """The result is the same hashable object, of the class that is asked for."""
        given: list[Any] = [HOOKS, Derived(sync_token_id=3, promise_token_id=2), FIELDS]
        assert {SpecialKwargs.from_json(json.dumps(FIELDS)), SpecialKwargs.of(FIELDS)} == {HOOKS}
        assert {Derived.of(each) for each in given} == {given[1]}
        assert SpecialKwargs.of(given[1]) is given[1]
        assert Derived.of(None) is None

    def test_json_reaches_every_field(self) -> None:
        """Lists become tuples, and objects the pairs of `handlers`."""
        parsed = SpecialKwargs.from_json(
            '{"promise_token": "<p>", "children_per_promise": 2, "child_prefix_token_ids": [[1], [2, 3]], '
            '"child_sampling_params": {"guided_decoding": {"choice": ["a"]}}, '
            f'"child_merge_strategy": "{JOIN}", "handlers": {{"<tag>": "{HANDLER}"}}}}'
        )
        assert parsed is not None
        assert parsed.child_prefix_token_ids == ((1,), (2, 3))
        assert parsed.handlers == (("<tag>", HANDLER),)
        assert {parsed: 1}[pickle.loads(pickle.dumps(parsed))] == 1

    def test_later_changes_of_what_was_given_change_nothing(self) -> None:
        """An engine's configuration is fixed at its start."""
        overrides = {"temperature": 0.5}
        hooks = SpecialKwargs(sync_token_id=5, child_sampling_params=overrides)
        overrides["temperature"] = 2
        assert hooks.child_sampling_params == {"temperature": 0.5}

    @pytest.mark.parametrize("text", ["{", "[]", "5"])
    def test_json_that_is_no_object_is_refused(self, text: str) -> None:
        """The error quotes what was given."""
        with pytest.raises(ValueError, match=r"special_kwargs: .*JSON"):
            SpecialKwargs.from_json(text)

    def test_anything_else_is_a_type_error(self) -> None:
        """A string is not a mapping: only --special-kwargs parses one."""
        with pytest.raises(TypeError, match="expected SpecialKwargs or a dict"):
            SpecialKwargs.of("sync")  # type: ignore[arg-type]


class TestTokens:
    def test_tokens_by_text(self) -> None:
        """Texts are looked up in the vocabulary first, then encoded."""
        hooks = SpecialKwargs(
            sync_token="<sync>", promise_token="fork", handlers=(("<promise>", HANDLER), (5, HANDLER))
        )
        assert needs_tokenizer(hooks)
        assert with_token_ids(hooks, WordTokenizer()) == SpecialKwargs(
            sync_token_id=7, promise_token_id=9, handlers=((8, HANDLER), (5, HANDLER))
        )
        assert type(with_token_ids(Derived(sync_token="<sync>"), WordTokenizer())) is Derived

    def test_ids_need_no_tokenizer(self) -> None:
        """Ids stay as they are."""
        assert not needs_tokenizer(HOOKS)
        assert with_token_ids(HOOKS, WordTokenizer()) == HOOKS

    def test_one_function_resolves_all_of_it(self) -> None:
        """It loads the tokenizer only for what is given by text, and checks ids in either case."""
        assert resolve(SpecialKwargs(sync_token="<sync>"), WordTokenizer, 128).sync_token_id == 7
        assert resolve(HOOKS, pytest.fail, 128) == HOOKS
        with pytest.raises(ValueError, match="not in the model's vocabulary; use an id from 0 to 1"):
            resolve(HOOKS, pytest.fail, 2)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"sync_token": "<sync>"}, "a token is given by its text, and skip_tokenizer_init=True leaves nothing"),
            ({"sync_token_id": 5}, r"merge_separator is '\\n'; set it to '', or skip_tokenizer_init=False"),
        ],
    )
    def test_what_needs_a_tokenizer_is_refused_without_one(self, fields: dict[str, Any], message: str) -> None:
        """The error names what needs it, and both ways out; ids alone need none."""
        with pytest.raises(ValueError, match=message):
            resolve(SpecialKwargs(**fields), None, 128)
        by_id = SpecialKwargs(sync_token_id=5, merge_separator="")
        assert resolve(by_id, None, 128) == by_id

    @pytest.mark.parametrize("text", ["sync up", "nonsense"])
    def test_a_text_of_more_or_less_than_one_token_is_refused(self, text: str) -> None:
        """The unknown token does not count as one."""
        with pytest.raises(ValueError, match=f"sync_token has '{text}', which is .*use a text that is one token"):
            with_token_ids(SpecialKwargs(sync_token=text), WordTokenizer())

    def test_two_texts_of_one_token_are_refused(self) -> None:
        """This is known only once the tokenizer is asked."""
        with pytest.raises(ValueError, match="token 7 is given to two"):
            with_token_ids(SpecialKwargs(sync_token="<sync>", promise_token_id=7), WordTokenizer())

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            *(({name: token_id}, f"{name} has {token_id}") for name in FIELDS for token_id in (-1, 128)),
            ({"child_prefix_token_ids": (3, 500)}, "child_prefix_token_ids has 500"),
            ({"handlers": {500: HANDLER}}, "handlers has 500"),
        ],
    )
    def test_a_token_outside_the_vocabulary_is_refused(self, fields: dict[str, Any], told: str) -> None:
        """Ids run from 0 to the size of the vocabulary less one; another would fail in the model, for a whole batch."""
        with pytest.raises(ValueError, match=f"{told}.*from 0 to 127"):
            check_vocabulary(SpecialKwargs(**{**FIELDS, **fields}), 128)
