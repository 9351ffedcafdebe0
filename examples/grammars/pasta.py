# SPDX-License-Identifier: Apache-2.0
"""PASTA (arXiv 2502.11517): promises that are decoded beside the main thread, until it syncs.

    The main thread:   ...<promise topic="cats" tokens="30"/>...<sync/>...
    A child:           <async>...</async>, begun by the engine after its promise
    After the sync:    the chunks follow <sync/>, in the order of their promises

Tags that are one token: ``/>``, ``<sync/>``, ``<async>``, ``</async>``. No handler is needed: the tag that
closes a promise is the promise token.
"""

from collections.abc import Sequence

from sequence_hooks.handlers import Merged
from sequence_hooks.results import ChildOutput
from vllm.config import SpecialKwargs
from vllm.transformers_utils.tokenizer import AnyTokenizer


def special_kwargs(tokenizer: AnyTokenizer) -> SpecialKwargs:
    """PASTA for the model of ``tokenizer``."""
    opening, closing = (tuple(tokenizer.encode(tag, add_special_tokens=False)) for tag in ("<async>", "</async>"))
    return SpecialKwargs(
        promise_token="/>",
        sync_token="<sync/>",
        block_on="sync",
        child_prefix_token_ids=opening,
        child_sampling_params={"stop_token_ids": list(closing)},
        child_merge_strategy=f"{__name__}.chunks",
    )


def chunks(children: Sequence[ChildOutput]) -> Merged:
    """Each chunk with its tags restored: the opening one was the child's prefix, the closing one its stop token."""
    return [piece for child in children for piece in ("<async>", child, "</async>")]
