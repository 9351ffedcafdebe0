# SPDX-License-Identifier: Apache-2.0
"""Multiverse (arXiv 2506.09991): a goal's outlines become paths that are decoded side by side; blocks may nest::

    Sampled:      <Parallel>\\n<Goal>\\n<Outline>\\n1: ...\\n</Outline>\\n<Outline>\\n2: ...\\n</Outline>\\n</Goal>
    Children:     \\n<Path>\\n1:...\\n</Path>     \\n<Path>\\n2:...\\n</Path>
    After them:   \\n<Conclusion>\\n...\\n</Conclusion>\\n</Parallel>, with all paths in the context

Read in Infini-AI-Lab/Multiverse (tags, each one added token: ``train/utils.py``), in its engine, a copy of SGLang 0.4.6
(Multiverse-Engine, commit b3ed243), and in 199 blocks that its authors published, where a line break follows every tag.
Positions overlap, and siblings do not see each other. Blocks within paths have numbers such as ``1.2``.

Its engine forks 20 outlines at most, and nests to depth 6; so does this one.

Here it differs as `sequence_hooks.protocols.npr` does. A ``</Goal>`` without outlines ends that engine; here it is
text, of which the caller is told. Its ``max_new_tokens`` limits the longest way through a tree; here ``max_tokens``
limits what each sequence samples, and `max_tree_tokens` all of them.

Not confirmed: the tokenizer of the published checkpoint.
"""

from sequence_hooks.config.notations import Notation
from sequence_hooks.protocols.fan_out import FanOut, Tags
from sequence_hooks.text.encoding import Tokenizer

NOTATION = Notation(
    fields={
        "handlers": {"</Goal>": "sequence_hooks.protocols.multiverse.handler"},
        "child_merge_strategy": "kv_inject",
        "position_rule": "overlap",
        "max_child_depth": 6,
        "max_children": 20,
        "max_tree_sequences": 1024,
    },
    one_token=("<Goal>", "<Outline>", "</Goal>", "<Path>", "</Path>", "<Conclusion>"),
)
"""What it configures."""

TAGS = Tags("<Goal>", "<Outline>", "</Goal>", "<Path>", "</Path>")


def handler(tokenizer: Tokenizer) -> FanOut:
    """Fans out a child for each ``<Outline>``."""
    return FanOut(tokenizer, TAGS, after="\n<Conclusion>\n")
