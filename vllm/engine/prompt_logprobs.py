# SPDX-License-Identifier: Apache-2.0
"""Takes each entry of a prompt's logprobs once, though the prompt may be prefilled again."""

import copy

from vllm.sequence import SequenceGroup


def are_missing(seq_group: SequenceGroup) -> bool:
    """Whether some entries have not been taken; the entry of the first token is None."""
    taken = seq_group.prompt_logprobs
    return taken is None or len(taken) < seq_group.first_seq.get_prompt_len()


def drop_what_comes_again(seq_group: SequenceGroup, num_new: int) -> None:
    """Drop the entries that a chunk of ``num_new`` brings again: its KV may have been computed before, and freed."""
    if seq_group.prompt_logprobs is not None:
        seq = seq_group.first_seq
        # The prompt's last token has no next one in the prompt.
        num_computed = min(seq.get_num_computed_tokens(), seq.get_prompt_len() - 1)
        del seq_group.prompt_logprobs[num_computed - num_new + 1 :]


def stop_asking(seq_group: SequenceGroup) -> None:
    """Request no more of them: upstream's sampler would fail once more than the prompt has to be prefilled."""
    seq_group.sampling_params = copy.copy(seq_group.sampling_params)
    seq_group.sampling_params.prompt_logprobs = None
