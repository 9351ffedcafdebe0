# SPDX-License-Identifier: Apache-2.0
"""A server with hooks, used by the OpenAI client and by plain HTTP, with its engine in its process or in another."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forkjoin_engine import MODEL_FOLDER, hooks_for
from forkjoin_task import expected_output, held_out_prompts
from openai import OpenAI

from mytests.servers import API_SERVER, server, until

pytestmark = pytest.mark.model

MODEL = str(MODEL_FOLDER)
PROMPT = held_out_prompts(1, 8, "sync")[0]
NUM_CHILDREN = PROMPT.count(" ") // 2
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
SEPARATE, TOGETHER = "engine in a process of its own", "all in one process"


@pytest.fixture(scope="module", params=[SEPARATE, TOGETHER])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with hooks."""
    template = tmp_path_factory.mktemp("chat") / "template.jinja"
    template.write_text(TEMPLATE)
    options = ["--disable-frontend-multiprocessing"] if request.param == TOGETHER else []
    fields = json.dumps(vars(hooks_for("sync")))
    command = [*API_SERVER, MODEL, "--special-kwargs", fields, "--chat-template", str(template), *options]
    with server(*command, use_v1="0") as found:
        yield found


@pytest.fixture
def client(address: str) -> OpenAI:
    return OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def arguments(**extra: Any) -> dict[str, Any]:
    """The arguments of a greedy request whose text includes the hook tokens."""
    body = {"skip_special_tokens": False, **extra}
    return {"model": MODEL, "temperature": 0, "max_tokens": 40, "extra_body": body}


def check_tree(choice: Any) -> None:
    """The choice has all children, and its segments cover the output without a gap."""
    assert [child["failed"] for child in choice.children] == [False] * NUM_CHILDREN
    ends = [segment["end"] for segment in choice.segments]
    assert [segment["start"] for segment in choice.segments] == [0, *ends[:-1]]
    assert {segment["child"] for segment in choice.segments} >= {child["request_id"] for child in choice.children}


class TestCompletions:
    def test_the_choice_has_its_tree(self, client: OpenAI) -> None:
        """The tree comes with the joined text."""
        (choice,) = client.completions.create(prompt=PROMPT, **arguments()).choices
        assert choice.text == expected_output(PROMPT)
        check_tree(choice)

    def test_each_sample_has_its_own(self, client: OpenAI) -> None:
        """Two prompts with n = 2 have four trees."""
        choices = client.completions.create(prompt=[PROMPT, PROMPT], n=2, **arguments() | {"temperature": 0.01}).choices
        assert [choice.index for choice in choices] == [0, 1, 2, 3]
        for choice in choices:
            check_tree(choice)
        assert len({child["request_id"] for choice in choices for child in choice.children}) == 4 * NUM_CHILDREN

    def test_a_stream_is_the_parents_alone(self, client: OpenAI) -> None:
        """It is silent while the parent is BLOCKED; the tree comes with the finish reason."""
        chunks = list(client.completions.create(prompt=PROMPT, stream=True, **arguments()))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected_output(PROMPT)
        check_tree(chunks[-1].choices[0])

    def test_children_stream_for_who_asks(self, client: OpenAI) -> None:
        """Their text comes as chunks without choices, before the parent goes on."""
        chunks = list(client.completions.create(prompt=PROMPT, stream=True, **arguments(stream_children=True)))
        told = [chunk.child for chunk in chunks if not chunk.choices]
        tree = chunks[-1].choices[0].children
        for child in tree:
            texts = [delta["text"] for delta in told if delta["request_id"] == child["request_id"]]
            assert "".join(texts) == child["text"] and len(texts) > 1
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == expected_output(PROMPT)

    def test_a_request_may_switch_its_hooks_off(self, client: OpenAI) -> None:
        """Its choices are then upstream's."""
        (choice,) = client.completions.create(prompt=PROMPT, **arguments(vllm_xargs={"hooks": 0})).choices
        assert not hasattr(choice, "segments") and "<sync>" in choice.text

    def test_a_request_may_not_loosen_its_limits(self, client: OpenAI) -> None:
        """The error names the field and the maximum."""
        with pytest.raises(Exception, match="max_children is 1000; the engine allows at most 16"):
            client.completions.create(prompt=PROMPT, **arguments(vllm_xargs={"max_children": 1000}))


class TestChat:
    MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]

    @pytest.mark.parametrize("n", [1, 2])
    def test_each_choice_has_its_tree(self, client: OpenAI, n: int) -> None:
        """The tree comes with the message."""
        sampled = arguments() | {"temperature": 0.01}
        choices = client.chat.completions.create(messages=self.MESSAGES, n=n, **sampled).choices
        assert [choice.message.content for choice in choices] == [expected_output(PROMPT)] * n
        for choice in choices:
            check_tree(choice)

    def test_children_stream_for_who_asks(self, client: OpenAI) -> None:
        """Their text comes as chunks without choices."""
        stream = client.chat.completions.create(messages=self.MESSAGES, stream=True, **arguments(stream_children=True))
        *chunks, last = list(stream)
        told = [chunk.model_extra["child"] for chunk in chunks if not chunk.choices]
        for child in last.choices[0].children:
            assert "".join(each["text"] for each in told if each["request_id"] == child["request_id"]) == child["text"]

    @pytest.mark.parametrize("n", [1, 2])
    def test_a_stream_ends_with_the_tree(self, client: OpenAI, n: int) -> None:
        """Each choice has its own tree."""
        sampled = arguments() | {"temperature": 0.01}
        stream = client.chat.completions.create(messages=self.MESSAGES, stream=True, n=n, **sampled)
        choices = [choice for chunk in stream for choice in chunk.choices]
        for index in range(n):
            own = [choice for choice in choices if choice.index == index]
            assert "".join(choice.delta.content or "" for choice in own) == expected_output(PROMPT)
            check_tree(own[-1])


def sampled_by(branch: Any) -> int:
    """The number of tokens that a choice or child, and all below it, have sampled."""
    segments, children = (getattr(branch, name, None) or branch[name] for name in ("segments", "children"))
    own = sum(segment["end"] - segment["start"] for segment in segments if segment["origin"] == "sampled")
    return own + sum(map(sampled_by, children))


def check_usage(usage: Any, choices: list[Any]) -> None:
    """Each token of the choices has an origin, and children sampled more than was merged."""
    details = usage.completion_tokens_details
    by_origin = {
        origin: sum(s["end"] - s["start"] for choice in choices for s in choice.segments if s["origin"] == origin)
        for origin in ("sampled", "merged", "inserted")
    }
    assert sum(by_origin.values()) == usage.completion_tokens
    assert (details.merged_tokens, details.inserted_tokens) == (by_origin["merged"], by_origin["inserted"])
    assert details.sampled_tokens == sum(map(sampled_by, choices)) > by_origin["sampled"] + by_origin["merged"]


class TestUsage:
    """What the OpenAI client gets, which accepts fields that it does not know."""

    SAMPLED = arguments() | {"temperature": 0.01}
    STREAMED: Any = {"stream": True, "stream_options": {"include_usage": True}}

    def test_of_completions(self, client: OpenAI) -> None:
        """The usage of two prompts with n = 2 is that of all choices."""
        response = client.completions.create(prompt=[PROMPT, PROMPT], n=2, **self.SAMPLED)
        check_usage(response.usage, response.choices)

    def test_of_a_chat(self, client: OpenAI) -> None:
        """The usage of a chat with n = 2 is that of both choices."""
        response = client.chat.completions.create(messages=TestChat.MESSAGES, n=2, **self.SAMPLED)
        check_usage(response.usage, response.choices)

    def test_of_a_stream_of_completions(self, client: OpenAI) -> None:
        """The last chunk has the usage of all choices."""
        *chunks, last = client.completions.create(prompt=[PROMPT, PROMPT], n=2, **self.SAMPLED, **self.STREAMED)
        choices = [choice for chunk in chunks for choice in chunk.choices if hasattr(choice, "segments")]
        assert len(choices) == 4
        check_usage(last.usage, choices)

    def test_of_a_stream_of_a_chat(self, client: OpenAI) -> None:
        """The last chunk has the usage of both choices."""
        *chunks, last = client.chat.completions.create(messages=TestChat.MESSAGES, n=2, **self.SAMPLED, **self.STREAMED)
        choices = [choice for chunk in chunks for choice in chunk.choices if hasattr(choice, "segments")]
        assert len(choices) == 2
        check_usage(last.usage, choices)

    def test_continuous_usage_grows_to_the_whole(self, client: OpenAI) -> None:
        """It has details as soon as a hook has fired."""
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        chunks = list(client.completions.create(prompt=PROMPT, stream=True, stream_options=options, **arguments()))
        told = [chunk.usage.completion_tokens_details for chunk in chunks]
        counts = [details.sampled_tokens for details in told if details is not None]
        assert told[0] is None and counts == sorted(counts) and len(counts) > 2
        check_usage(chunks[-1].usage, chunks[-2].choices)

    def test_without_a_hook_it_is_upstreams(self, client: OpenAI) -> None:
        """No field is added."""
        usage = client.completions.create(prompt=PROMPT, **arguments(vllm_xargs={"hooks": 0})).usage
        assert usage.completion_tokens > 0 and usage.completion_tokens_details is None


def metric(address: str, name: str) -> float:
    """The value of a metric of hooks, 0 before it is first set."""
    with urllib.request.urlopen(f"{address}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def test_plain_http_sees_the_same(address: str, tmp_path: Path) -> None:
    """No client library is needed, and the metrics count the request."""
    before = metric(address, "vllm:children_spawned_total")
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "skip_special_tokens": False}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        (choice,) = json.load(response)["choices"]
    assert len(choice["children"]) == NUM_CHILDREN
    until(lambda: metric(address, "vllm:children_spawned_total") >= before + NUM_CHILDREN)


def test_the_example_streams_a_tree(address: str) -> None:
    """It prints what the README shows."""
    command = [sys.executable, "examples/stream_tree.py", address]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=MODEL_FOLDER.parents[1]).stdout
    assert "child 2  'e'" in printed and "children: ['enost', 'aelpp', 'eirrv']" in printed
