# SPDX-License-Identifier: Apache-2.0
"""Odd bodies for every route of a server: each case is a name, a path, and a body."""

import json
from collections.abc import Iterator
from typing import Any

from forkjoin_engine import MODEL_FOLDER

MODEL = str(MODEL_FOLDER)
LONG, DEEP = "a" * 200_000, 3000
SURROGATE = "\ud800"
MANY_DIGITS = int("1" * 400)

Body = dict[str, Any] | list[Any] | str | bytes | None
"""JSON, or text or bytes that are sent unchanged."""

Case = tuple[str, str, Body]
"""Its name, the path, and the body."""

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "text": "a",
    "a long text": LONG,
    "a lone surrogate": SURROGATE,
    "negative": -1,
    "huge": 2**63,
    "many digits": MANY_DIGITS,
    "fraction": 1.5,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "an empty list": [],
    "a list": [1],
    "a list of lists": [[1]],
    "an object": {"a": 1},
}
"""For any field."""

ANY_VALUE = ["prompt", "stream_options", "response_format", "vllm_xargs"]
ANY_VALUE_OF_A_CHAT = ["messages", "tools", "tool_choice"]

SAMPLING: dict[str, list[Any]] = {
    "max_tokens": [-5, 0, 10**9],
    "min_tokens": [-5, 99],
    "n": [0, -1, 10**6],
    "best_of": [0, -1, 10**6],
    "logprobs": [-1, 1000],
    "prompt_logprobs": [-1, 1000],
    "top_k": [0, -5, 10**9],
    "top_p": [0, 2],
    "min_p": [-1, 2],
    "temperature": [-1, 1e30, 1e-30],
    "repetition_penalty": [0, -1, 1e30],
    "presence_penalty": [9],
    "frequency_penalty": [-9],
    "seed": [-(2**63), 2**64],
    "stop": [[""], ["a"] * 4000, [LONG], [SURROGATE]],
    "stop_token_ids": [[-1], [10**6], [2**70], list(range(4000))],
    "allowed_token_ids": [[], [-1], [10**6]],
    "bad_words": [[""], ["a" * 10_000], ["zzz"] * 2000],
    "logit_bias": [{"-1": 1}, {"99999": 1}, {"a": 1}, {"3": 1e30}, {"3": "b"}],
    "truncate_prompt_tokens": [-7, 0, 10**9],
    "length_penalty": ["b"],
    "use_beam_search": [True],
    "echo": [True],
    "stream_options": [{"include_usage": True}],
    "response_format": [{"type": "nonsense"}, {"type": "json_schema"}, {"type": "structural_tag", "structures": 5}],
    "vllm_xargs": [
        {"hooks": 7},
        {"max_children": -1},
        {"max_children": 10**9},
        {"max_child_depth": "a"},
        {"max_tree_tokens": 1.5},
        {"max_running_children": 0},
        {"max_childs": 2},
        {LONG: 1},
        {"hooks": LONG},
        {"hooks": {"a": {}}},
    ],
    "logits_processors": [["a.b"], [{"qualname": "os.system"}]],
    "kv_transfer_params": [{"a": 1}],
    "priority": [5, 2**70],
    "request_id": ["a_child_0", LONG],
    "prompt_adapter": ["nobody"],
    "include_stop_str_in_output": [True],
    "spaces_between_special_tokens": [False],
    "detokenize": [False],
    "return_tokens_as_token_ids": [True],
    "prompt_embeds": ["nonsense", ["AAAA"], ""],
}
"""For fields of completions."""

GRAMMARS: dict[str, list[Any]] = {
    "guided_regex": ["(((", "", "a{1,100000}", "(?=a)b", SURROGATE, LONG],
    "guided_json": ["{", {"type": "nonsense"}, {"$ref": "#"}, {"type": "object", "properties": 5}, "", {"enum": []}],
    "guided_choice": [[], [""], ["a", 5], ["☃"], [LONG]],
    "guided_grammar": ["", "root ::= ", "root ::= root", "nonsense"],
    "guided_decoding_backend": ["nonsense", "outlines", "xgrammar:nonsense"],
    "guided_whitespace_pattern": ["((("],
}
"""For fields of completions; each grammar is compiled before any client's next token."""

PROMPTS: dict[str, Any] = {
    "empty": "",
    "no prompts": [],
    "no ids": [[]],
    "negative ids": [-1],
    "ids out of the vocabulary": [10**6],
    "huge ids": [2**70],
    "ids of many digits": [MANY_DIGITS],
    "texts and ids": ["a", 1],
    "fractions": [1.5],
    "booleans": [True],
    "past the model's length": "fork 1 " * 4000,
    "very long": LONG,
    "a lone surrogate": SURROGATE,
    "null characters": "\0" * 50,
    "hook tokens": "<promise><sync><promise>",
    "many": ["a"] * 300,
    "objects": [{"prompt": "a"}],
}

MESSAGES: dict[str, Any] = {
    "none": [],
    "no object": ["a"],
    "no role": [{"content": "a"}],
    "a strange role": [{"role": "nobody", "content": "a"}],
    "no content": [{"role": "user"}],
    "null": [{"role": "user", "content": None}],
    "a number": [{"role": "user", "content": 5}],
    "an image": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
    "a strange part": [{"role": "user", "content": [{"type": "nonsense", "nonsense": 5}]}],
    "a part of nothing": [{"role": "user", "content": [{}]}],
    "a tool call": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"arguments": "{"}}]}],
    "long": [{"role": "user", "content": LONG}],
    "a lone surrogate": [{"role": "user", "content": SURROGATE}],
    "many": [{"role": "user", "content": "a"}] * 2000,
}

CHATS: dict[str, dict[str, Any]] = {
    "an id of a lone surrogate": {"request_id": SURROGATE},
    "an id without end": {"request_id": LONG},
    "an id like a child's": {"request_id": "a_child_0"},
    "a number of tools": {"tools": 5},
    "tools of nothing": {"tools": [{}]},
    "a tool without a name": {"tools": [{"type": "function", "function": {}}], "tool_choice": "required"},
    "a tool of a strange schema": {
        "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "nonsense"}}}],
        "tool_choice": "required",
    },
    "a choice of nobody": {"tool_choice": {"type": "function", "function": {"name": "nobody"}}},
    "a strange choice": {"tools": [5], "tool_choice": 5},
    "a strange template": {"chat_template": "{{ 1 / 0 }}"},
    "an endless template": {"chat_template": "{% for i in range(10**9) %}a{% endfor %}"},
    "a template that is none": {"chat_template": "{% for"},
    "template arguments": {"chat_template_kwargs": {"messages": 5}},
    "logprobs without a number": {"logprobs": True, "top_logprobs": 10**6},
    "logprobs that are off": {"top_logprobs": 5},
    "both continued and prompted": {"continue_final_message": True, "add_generation_prompt": True},
    "documents": {"documents": [5]},
}

RESUMES: dict[str, Body] = {
    "nobody": {"request_id": "nobody"},
    "a long id": {"request_id": LONG},
    "a short long id": {"request_id": "a" * 3000},
    "24 MB of text": {"request_id": "nobody", "text": "fork 1 " * 3_500_000},
    "both": {"request_id": "nobody", "text": "a", "token_ids": [1]},
    "booleans": {"request_id": "nobody", "token_ids": [True, 2.0]},
    "an id of 5,000 digits": '{"request_id": "nobody", "token_ids": [' + "1" * 5000 + "]}",
    "a million ids": {"request_id": "nobody", "token_ids": [1] * 10**6},
    "a lone surrogate": {"request_id": SURROGATE, "text": SURROGATE},
    "no id": {"text": "a"},
    "an unknown field": {"request_id": "nobody", "texts": "a"},
    "a number": {"request_id": 5},
}

RAW: dict[str, Body] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a list": [],
    "a text": '"a"',
    "a number": "5",
    "null": "null",
    "many digits": '{"max_tokens": ' + "1" * 5000 + "}",
    "the same key twice": '{"model": 5, "model": 6}',
}
"""For any route."""

POSTS = [
    *("/v1/completions", "/v1/chat/completions", "/v1/resume_sequence", "/tokenize", "/detokenize", "/v1/embeddings"),
    *("/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/invocations"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
]

WITH_ALL_RAW = (*POSTS[:3], "/invocations")
"""The routes that each read a body in their own way, and one of the others."""

OTHERS: list[Case] = [
    ("tokenize: a lone surrogate", "/tokenize", {"prompt": SURROGATE}),
    ("tokenize: long", "/tokenize", {"prompt": LONG}),
    ("tokenize: messages", "/tokenize", {"messages": [5]}),
    ("detokenize: out of the vocabulary", "/detokenize", {"tokens": [10**6, -1]}),
    ("detokenize: huge", "/detokenize", {"tokens": [2**70]}),
    ("detokenize: booleans", "/detokenize", {"tokens": [True]}),
    ("detokenize: many", "/detokenize", {"tokens": [1] * 10**5}),
    ("embeddings", "/v1/embeddings", {"input": "a"}),
    ("pooling", "/pooling", {"input": [[1]]}),
    ("classify", "/classify", {"input": "a"}),
    ("score", "/score", {"text_1": "a", "text_2": ["b"]}),
    ("rerank", "/v1/rerank", {"query": "a", "documents": [5]}),
    ("invocations: of nothing", "/invocations", {"a": 1}),
    ("an adapter", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}),
    ("a route that is none", "/v1/nonsense", {}),
]


def cases() -> Iterator[Case]:
    """All cases; grammars last."""
    for path in POSTS:
        raw = RAW if path in WITH_ALL_RAW else {name: RAW[name] for name in ("nothing", "deep objects", "a list")}
        yield from ((f"{path}: {name}", path, body) for name, body in raw.items())
    for name, value in VALUES.items():
        yield from ((f"completion: {field} is {name}", *completion(**{field: value})) for field in ANY_VALUE)
        yield from ((f"chat: {field} is {name}", *chat(**{field: value})) for field in ANY_VALUE_OF_A_CHAT)
    yield from _each_value(SAMPLING)
    yield from ((f"a prompt: {name}", *completion(prompt=prompt)) for name, prompt in PROMPTS.items())
    yield from ((f"messages: {name}", *chat(messages=messages)) for name, messages in MESSAGES.items())
    yield from ((f"resume: {name}", "/v1/resume_sequence", body) for name, body in RESUMES.items())
    yield ("completion: echo with logprobs", *completion(echo=True, logprobs=1, max_tokens=0))
    yield ("completion: an unknown model", *completion(model=LONG))
    yield ("completion: more than at most", *completion(min_tokens=9, max_tokens=3))
    yield ("completion: suffix", *completion(suffix="b"))
    yield from OTHERS
    yield from ((f"chat: {name}", *chat(**fields)) for name, fields in CHATS.items())
    yield from _each_value(GRAMMARS)
    yield ("completion: a grammar twice", *completion(guided_regex="a", guided_choice=["b"]))
    yield ("completion: a stream of a grammar", *completion(guided_regex="(((", stream=True))
    yield ("invocations: a grammar", "/invocations", {"prompt": "a", "guided_regex": "((("})


def _each_value(fields: dict[str, list[Any]]) -> Iterator[Case]:
    for field, values in fields.items():
        for number, value in enumerate([*values, "b"]):
            yield (f"completion: {field} {number}", *completion(**{field: value}))


def completion(**fields: Any) -> tuple[str, Body]:
    return "/v1/completions", {"model": MODEL, "prompt": "fork 1 stone\n", "max_tokens": 4} | fields


def chat(**fields: Any) -> tuple[str, Body]:
    messages = [{"role": "user", "content": "fork 1 stone\n"}]
    return "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 4} | fields


def encoded(body: Body) -> bytes | None:
    if isinstance(body, str):
        return body.encode()
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
