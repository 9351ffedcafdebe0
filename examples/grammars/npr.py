# SPDX-License-Identifier: Apache-2.0
"""NPR: guidelines whose plans become steps that are decoded side by side.

    Sampled:      <guideline><plan>1: ...</plan><plan>2: ...</plan></guideline>
    Children:     <step>1:...</step>   <step>2:...</step>
    After them:   <takeaway>..., with all steps in the context

Each of these tags is one token.
"""

from grammars.fan_out import FanOut, Tags
from vllm.config import SpecialKwargs
from vllm.transformers_utils.tokenizer import AnyTokenizer

TAGS = Tags("<guideline>", "<plan>", "</guideline>", "<step>", "</step>", "<takeaway>")


def special_kwargs(tokenizer: AnyTokenizer) -> SpecialKwargs:
    """NPR for any model that has its tags; the tokenizer is not used."""
    return SpecialKwargs(handlers={TAGS.closes_plans: f"{__name__}.handler"})


def handler(tokenizer: AnyTokenizer) -> FanOut:
    """Fans out one child per ``<plan>``."""
    return FanOut(tokenizer, TAGS)
