# SPDX-License-Identifier: Apache-2.0
"""What both asynchronous engines of V0 add to upstream's, the one in the same process and the one in another."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from sequence_hooks.results import Waiting
from sequence_hooks.serving.live.trees import LiveRequests, Tree
from sequence_hooks.tree.resume import ids_of
from vllm.engine.admission import admit_early
from vllm.engine.outlines import told
from vllm.engine.protocol import EngineClient


class HookClient(EngineClient):
    """The methods of an `LLMEngine` with hooks, for a client of it; to be listed before upstream's class."""

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        """Upstream's `generate`, after refusing what no engine would take: a server answers with an error then.

        Raises:
            ValueError: as in `admit_early`.
        """
        generate, with_config = super().generate, getattr(self, "engine", self)

        def admitted(params: Any, name: str) -> Any:
            admit_early(with_config, name, params)
            return generate(prompt, params, name, *args, **kwargs)

        return told(self, admitted, sampling_params, request_id)

    async def resume_sequence(self, request_id: str, text_or_token_ids: str | Sequence[int] | None = None) -> None:
        """`LLMEngine.resume_sequence`, with effect at the next step. The engine keeps stepping while a text is encoded.

        Raises:
            ValueError: as in `LLMEngine.resume_sequence`.
        """
        room = await self._call("room_to_resume", request_id)
        token_ids = await ids_of(text_or_token_ids, room, self.get_tokenizer)
        await self._call("resume_sequence", request_id, token_ids)

    async def sequences_awaiting_resume(self) -> list[Waiting]:
        """`LLMEngine.sequences_awaiting_resume`."""
        return await self._call("sequences_awaiting_resume")

    async def live_requests(self, limit: int, num_tokens: int) -> LiveRequests:
        """`LLMEngine.live_requests`."""
        return await self._call("live_requests", limit, num_tokens)

    async def live_tree(self, request_id: str, num_tokens: int) -> Tree:
        """`LLMEngine.live_tree`."""
        return await self._call("live_tree", request_id, num_tokens)

    @abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any:
        """What the method of this name of the `LLMEngine` returns."""
