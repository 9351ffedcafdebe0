# SPDX-License-Identifier: Apache-2.0
"""Requests that crash upstream's engine: a server answers 400, and the next client is served."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from forkjoin_engine import MODEL_FOLDER
from forkjoin_task import make_prompt

Post = Callable[[str], httpx.Response]
"""Sends the body of a completion."""

PROMPT = make_prompt(["stone", "apple"], "promise")
"""The tiny model forks for it, and waits for nobody."""

BODIES: dict[str, dict[str, Any]] = {
    "regex": {"guided_regex": "((("},
    "characters": {"guided_json": {"type": "object"}},
    "tokenizer": {"guided_regex": "a", "guided_decoding_backend": "guidance"},
    "recursion": {"guided_grammar": 'root ::= root "1" | "1"'},
    "stop": {"stop_token_ids": [99999], "min_tokens": 2},
    "allowed": {"allowed_token_ids": [99999]},
    "bias": {"logit_bias": {"99999": 1}},
    "nan": {"temperature": float("nan")},
    "prompt": {"prompt": [5, -5]},
    "logprobs": {"prompt_logprobs": 1000},
}


class Refusals:
    """The tests of one kind of server, to which the fixture ``post`` sends."""

    @pytest.mark.parametrize("name", BODIES)
    def test_it_is_refused_and_others_are_served(self, name: str, post: Post) -> None:
        """It is refused before it is queued."""
        answer = post(_body(**BODIES[name]))
        assert answer.status_code == 400, answer.text
        assert len(answer.text) < 1000
        assert post(_body()).status_code == 200

    def test_a_stream_says_so_in_its_first_event(self, post: Post) -> None:
        """This is how upstream reports why a streaming request was refused."""
        answer = post(_body(**BODIES["regex"], stream=True))
        assert answer.status_code in (200, 400)
        assert '"code": 400' in answer.text or '"code":400' in answer.text
        assert post(_body()).status_code == 200

    def test_a_grammar_that_dies_later_ends_its_own_request(self, post: Post) -> None:
        """The request ends with the text sampled so far."""
        answer = post(_body(guided_regex="12\u1234"))
        choice = answer.json()["choices"][0]
        assert (answer.status_code, choice["text"], choice["finish_reason"]) == (200, "12", "abort")
        assert post(_body()).status_code == 200


def _body(**fields: Any) -> str:
    return json.dumps({"model": str(MODEL_FOLDER), "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields})
