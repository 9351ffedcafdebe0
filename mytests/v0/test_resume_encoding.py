# SPDX-License-Identifier: Apache-2.0
"""Texts for waiting sequences are encoded off the event loop, with a tokenizer of their own."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mytests.harness.surgical import CharTokenizer
from sequence_hooks.tree import resume
from sequence_hooks.tree.resume import ResumeRoom, ids_of
from vllm.lora.request import LoRARequest

ROOM = 20


@pytest.fixture(autouse=True)
def threads_of_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process forked from one that has encoded a text, as mutmut's are, has none of its threads."""
    with ThreadPoolExecutor(1) as encoder:
        monkeypatch.setattr(resume, "_encoder", encoder)
        yield


class TestEncoding:
    def test_the_event_loop_goes_on_meanwhile(self) -> None:
        """Others are served while a text is encoded, and their tokenizer is not used for it."""
        going_on = threading.Event()

        class SlowTokenizer(CharTokenizer):
            def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
                assert self is not tokenizer and going_on.wait(60)
                return super().encode(text, add_special_tokens)

        tokenizer = SlowTokenizer()

        async def tokenizer_of(lora_request: LoRARequest | None) -> Any:
            return tokenizer

        async def resume_beside_another() -> tuple[int, ...]:
            resumed = asyncio.create_task(ids_of("ab", ResumeRoom(ROOM, None), tokenizer_of))
            await asyncio.sleep(0)
            going_on.set()
            return await resumed

        assert asyncio.run(resume_beside_another()) == (97, 98)

    def test_what_it_raises_is_raised(self) -> None:
        """An error in the thread reaches the caller; here the text does not fit."""

        async def tokenizer_of(lora_request: LoRARequest | None) -> Any:
            return CharTokenizer()

        with pytest.raises(ValueError, match="room for 20 tokens"):
            asyncio.run(ids_of("a" * 21, ResumeRoom(ROOM, None), tokenizer_of))
