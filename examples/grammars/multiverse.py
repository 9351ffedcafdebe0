# SPDX-License-Identifier: Apache-2.0
"""Multiverse: a goal's outlines become paths that are decoded side by side; blocks may nest.

    Sampled:      <Parallel><Goal><Outline>1: ...</Outline><Outline>2: ...</Outline></Goal>
    Children:     <Path>1:...</Path>   <Path>2:...</Path>
    After them:   <Conclusion>...</Conclusion></Parallel>, with all paths in the context

Each of these tags is one token.
"""

from grammars.fan_out import FanOut, Tags
from vllm.config import SpecialKwargs
from vllm.transformers_utils.tokenizer import AnyTokenizer

TAGS = Tags("<Goal>", "<Outline>", "</Goal>", "<Path>", "</Path>", "<Conclusion>")


def special_kwargs(tokenizer: AnyTokenizer, max_depth: int = 3) -> SpecialKwargs:
    """Multiverse for any model that has its tags, with blocks in paths down to ``max_depth``."""
    return SpecialKwargs(handlers={TAGS.closes_plans: f"{__name__}.handler"}, max_child_depth=max_depth)


def handler(tokenizer: AnyTokenizer) -> FanOut:
    """Fans out one child per ``<Outline>``."""
    return FanOut(tokenizer, TAGS)
