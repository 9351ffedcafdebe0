# SPDX-License-Identifier: Apache-2.0
"""Servers that share an engine's cores (``--api-server-count``), and ask each other about their clients' sequences.

Each server knows only the trees of its own clients, and a client's next connection may reach any of them. So each
listens at an address that the others can tell from its number. The process that starts the servers chooses the
addresses, and hands them down by its environment.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio

from vllm.utils.network_utils import get_open_zmq_ipc_path

Answer = TypeVar("Answer")

ADDRESS = "SEQUENCE_HOOKS_SERVERS"
"""The environment variable that holds what the addresses of one engine's servers begin with."""

PATIENCE = 10.0
"""Seconds after which a server that does not answer is given up."""

_DONE, _REFUSED = b"done", b"refused"


class Awaiting(msgspec.Struct, tag=True):
    """Which sequences wait for their callers."""


class Resume(msgspec.Struct, tag=True):
    """Let one of them go on."""

    request_id: str
    given: str | list[int] | None


class Requests(msgspec.Struct, tag=True):
    """Which requests run, see `sequence_hooks.serving.live.routes.Watched`."""

    limit: int
    num_tokens: int


class RequestTree(msgspec.Struct, tag=True):
    """What is known of one of them."""

    request_id: str
    num_tokens: int


Call = Awaiting | Resume | Requests | RequestTree


def choose_addresses() -> None:
    """Let the servers that this process is about to start find each other."""
    os.environ[ADDRESS] = get_open_zmq_ipc_path()


class Peers:
    """The other servers of an engine, as one of them sees them.

    Args:
        own: The number of this server, from 0.
        count: How many there are.
    """

    def __init__(self, own: int, count: int) -> None:
        self._own = own
        self.others = [number for number in range(count) if number != own]
        self._base = os.environ[ADDRESS]

    async def listen(self, answer: Callable[[Call], Awaitable[Any]]) -> None:
        """Answer the others' calls by what ``answer`` returns, or by the `ValueError` that it raises; never returns."""
        answering = set[asyncio.Task[None]]()
        with zmq.asyncio.Context.instance().socket(zmq.ROUTER) as socket:
            socket.bind(self._address_of(self._own))
            while True:
                caller, *_, body = await socket.recv_multipart()
                # A text that is long to encode delays no other call.
                task = asyncio.create_task(_reply(socket, caller, body, answer))
                answering.add(task)
                task.add_done_callback(answering.discard)

    async def ask(self, number: int, call: Call, kind: type[Answer]) -> Answer:
        """What server ``number`` answers.

        Raises:
            ValueError: as it did.
            TimeoutError: it does not answer.
        """
        with zmq.asyncio.Context.instance().socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.connect(self._address_of(number))
            await socket.send(msgspec.msgpack.encode(call))
            try:
                status, body = await asyncio.wait_for(socket.recv_multipart(), PATIENCE)
            except TimeoutError:
                raise TimeoutError(f"API server {number} has not answered for {PATIENCE:g} s") from None
        if status == _REFUSED:
            raise ValueError(body.decode())
        return msgspec.msgpack.decode(body, type=kind)

    async def ask_all(self, call: Call, kind: type[Answer]) -> list[Answer]:
        """What each of the others answers; raises as `ask` does."""
        return await asyncio.gather(*(self.ask(number, call, kind) for number in self.others))

    def _address_of(self, number: int) -> str:
        return f"{self._base}-{number}"


async def _reply(
    socket: zmq.asyncio.Socket, caller: bytes, body: bytes, answer: Callable[[Call], Awaitable[Any]]
) -> None:
    try:
        found = await answer(msgspec.msgpack.decode(body, type=Call))
        reply = [_DONE, msgspec.msgpack.encode(found)]
    except ValueError as error:
        reply = [_REFUSED, str(error).encode()]
    with suppress(zmq.ZMQError):
        await socket.send_multipart([caller, b"", *reply])
