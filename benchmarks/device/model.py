# SPDX-License-Identifier: Apache-2.0
"""A Llama that computes all that a Llama does, and then samples what `benchmarks.device.script` says.

Importing this module makes it known to upstream, as users make models of their own known.
"""

from typing import Any

import torch

from benchmarks.device.script import successors
from vllm import ModelRegistry
from vllm.model_executor.models.llama import LlamaForCausalLM

_DIGIT = 64
"""Token ids travel from the layers to the logits as three digits: numbers to 256 are exact in bfloat16."""


class ScriptedLlama(LlamaForCausalLM):
    """A Llama whose greedy tokens depend on the last token alone."""

    def __init__(self, *, vllm_config: Any, prefix: str = "", **arguments: Any) -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, **arguments)
        config = vllm_config.model_config.hf_config
        table = torch.tensor(successors(config.child_tokens, config.vocab_size))
        digits = torch.stack([table // _DIGIT**2, table // _DIGIT % _DIGIT, table % _DIGIT], dim=-1)
        self.register_buffer("digits", digits.to(vllm_config.model_config.dtype), persistent=False)

    def forward(self, input_ids: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        """Hidden states, shape (tokens, hidden size), whose first three numbers are the digits of the next tokens."""
        hidden = super().forward(input_ids, *arguments, **named)
        hidden[:, :3] = self.digits[input_ids]
        return hidden

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        """Logits, shape (tokens, vocabulary), of which that of the next token is the highest."""
        logits = super().compute_logits(hidden_states)
        if logits is not None:
            high, middle, low = hidden_states[:, :3].round().long().unbind(-1)
            chosen = (high * _DIGIT + middle) * _DIGIT + low
            logits.scatter_(1, chosen.unsqueeze(1), 1e4)
        return logits


ModelRegistry.register_model("ScriptedLlama", ScriptedLlama)
