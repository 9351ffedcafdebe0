# SPDX-License-Identifier: Apache-2.0
"""Servers of one engine, which ask each other about their clients' sequences; `mytests.server` runs two of them."""

import asyncio
from typing import Any

import pytest

from sequence_hooks.results import Waiting
from sequence_hooks.v1.frontend import peers
from sequence_hooks.v1.frontend.peers import Awaiting, Call, Peers, Resume

WAITING = [Waiting("r", None, 0, 3, "a", (), 0, 1.5)]


async def answer(call: Call) -> Any:
    """A server at which one sequence waits, which takes no text."""
    if isinstance(call, Resume):
        raise ValueError(f"{call.request_id} takes no text")
    return WAITING


async def asked() -> tuple[Any, str, str]:
    """What the first of three servers learns from the second, which refuses one call, and from the third, which has
    ended."""
    peers.choose_addresses()
    first, second = Peers(0, 3), Peers(1, 3)
    listening = asyncio.create_task(second.listen(answer))
    waiting = await first.ask(1, Awaiting(), list[Waiting])
    with pytest.raises(ValueError) as refused:
        await first.ask(1, Resume("r", "text"), type(None))
    with pytest.raises(TimeoutError) as silent:
        await first.ask_all(Awaiting(), list[Waiting])
    listening.cancel()
    return waiting, str(refused.value), str(silent.value)


def test_a_server_learns_what_another_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and refusals as they are; one that is silent is named."""
    monkeypatch.setattr(peers, "PATIENCE", 0.2)
    monkeypatch.setenv(peers.ADDRESS, "")
    assert asyncio.run(asked()) == (
        WAITING,
        "r takes no text",
        "API server 2 has not answered for 0.2 s",
    )
