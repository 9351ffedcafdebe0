# SPDX-License-Identifier: Apache-2.0
"""NPR, the Native Parallel Reasoner (arXiv 2512.07461): plans become steps that are decoded side by side::

    Sampled:      <guideline>\\n<plan>1: ...</plan>\\n<plan>2: ...</plan>\\n</guideline>
    Children:     \\n<step>\\n1:...\\n</step>     \\n<step>\\n2:...\\n</step>
    After them:   \\n<takeaway>\\n...\\n</takeaway>, with all steps in the context

Read in bigai-nlco/Native-Parallel-Reasoner, commit e148ad5: the tags and that each is one added token in
``npr-beta/train/utils.py``; control flow in its copy of SGLang 0.4.6, ``managers/schedule_batch.py`` and
``managers/scheduler.py``; the format in ``evals/prompts/npr.txt``. Positions overlap, and siblings do not see each
other.

Here it differs:

- Its engine keeps one more token that a child samples after ``</step>``, expected to be a line break. Here a line break
  is inserted.
- ``</step>`` is prefilled after all steps; there a step has computed its own end. ``<takeaway>`` has the position that
  it has there, after the longest step and a line break, which there follows the last step.
- More than 5 plans, or none, end a request there. Here a block without plans is text, and `max_children` limits plans;
  the caller is told of either.
- The repetition penalty of steps is 1.02, as there. There it is about what the step has sampled; here, as in any vLLM,
  also about its context. The request's own is reset there, and kept here.

Not confirmed: the ids of the tokens, and a sample of the training data with its white space.
"""

from sequence_hooks.config.notations import Notation
from sequence_hooks.protocols.fan_out import FanOut, Tags
from sequence_hooks.text.encoding import Tokenizer

NOTATION = Notation(
    fields={
        "handlers": {"</guideline>": "sequence_hooks.protocols.npr.handler"},
        "child_merge_strategy": "kv_inject",
        "position_rule": "overlap",
        "child_sampling_params": {"repetition_penalty": 1.02},
        "max_child_depth": 6,
        "max_tree_sequences": 1024,
    },
    one_token=("<guideline>", "<plan>", "</guideline>", "<step>", "</step>", "<takeaway>"),
)
"""What it configures."""

TAGS = Tags("<guideline>", "<plan>", "</guideline>", "<step>", "</step>")


def handler(tokenizer: Tokenizer) -> FanOut:
    """Fans out a child for each ``<plan>``."""
    return FanOut(tokenizer, TAGS, after="\n<takeaway>\n")
