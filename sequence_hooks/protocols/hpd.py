# SPDX-License-Identifier: Apache-2.0
"""HPD-Parsing (arXiv 2607.18839, PaddleOCR): a layout is sampled while the text of its blocks is, beside it::

    The layout:   <BLOCK>title [12,30,500,60]<FORK><BLOCK>text [12,70,500,300]<FORK>...
    A child:      the layout before its <FORK>, then <CHILD>; it ends at <|im_end|>
    The output:   each <FORK> is replaced by <CHILD> and the child's text

Read in PaddlePaddle/PaddleOCR, ``docs/version3.x/pipeline_usage/HPD-Parsing.en.md``, in the description of vLLM's pull
request 48715, and in a reimplementation, GreatV/oar-ocr, ``oar-ocr-vl/src/hpd_parsing``: ``<FORK>`` and ``<CHILD>`` are
one token each (151679 and 151680); children do not fork, and go before others in the queue; the layout neither waits
for them nor sees their text.

Here it differs: upstream's ``skip_special_tokens`` leaves tags that the tokenizer calls special out of the text; send
``skip_special_tokens=false`` to see them. Multi-token prediction is not used.

At most 64 branches run at a time, and more wait, so that a page with more of them loses none.

Not confirmed: the source of its vLLM fork, and how many branches it allows in all.
"""

from collections.abc import Sequence

from sequence_hooks.config.notations import Notation
from sequence_hooks.handlers import Merged, PrefixOf
from sequence_hooks.results import ChildOutput

NOTATION = Notation(
    fields={
        "promise_token": "<FORK>",
        "block_on": "never",
        "child_context": "before_trigger",
        "child_prefix": "<CHILD>",
        "child_stop": "<|im_end|>",
        "child_merge_strategy": "sequence_hooks.protocols.hpd.join",
        "max_children": 1024,
        "max_running_children": 64,
        "max_tree_sequences": 1025,
    },
    one_token=("<FORK>", "<CHILD>", "<|im_end|>"),
)
"""What it configures."""


def join(children: Sequence[ChildOutput]) -> Merged:
    """Each result after what its child began with."""
    return [piece for child in children for piece in (PrefixOf(child), child)]
