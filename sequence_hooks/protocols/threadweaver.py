# SPDX-License-Identifier: Apache-2.0
"""ThreadWeaver (arXiv 2512.07843): outlines become threads that are decoded side by side::

    Sampled:      <Parallel>\\n<Outlines>\\n<Outline>1: ...</Outline>\\n<Outline>2: ...</Outline>\\n</Outlines>
    Children:     \\n<Thread>\\n1:...\\n</Thread>     \\n<Thread>\\n2:...\\n</Thread>
    After them:   \\n</Parallel>..., with all threads in the context

Read in facebookresearch/threadweaver, commit 2662232: ``threadweaver_sft/src/utils.py`` and ``simple_eval.py``, and the
token-level client ``single_turn_agent_loop.py``. It is a client of an unmodified engine, so positions are sequential,
and the joined context is prefilled as text. Threads do not fork. There a second thread begins right after the first
one's ``</Thread>``, without its line break.

The tags are added tokens of its own models; here they are recognized as text, so models that spell them out work too.

Here it differs:

- Of two outlines with one number, both become threads; its token-level client keeps the first.
- A thread that ends without ``</Thread>`` gets a line break and the tag, as in its token-level client, and the parent
  goes on; there generation ends with that block.

Not confirmed: public checkpoints. The paper says that the engine appends ``</Parallel>``; in the code the model samples
it.
"""

from collections.abc import Sequence

from sequence_hooks.config.notations import Notation
from sequence_hooks.handlers import Merged, Piece
from sequence_hooks.protocols.fan_out import FanOut, Tags
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, prefix_ids_of

NOTATION = Notation(
    fields={
        "handlers": {"</Outlines>": "sequence_hooks.protocols.threadweaver.handler"},
        "trigger_by": "text",
        "max_children": 50,
        "max_tree_sequences": 1024,
    }
)
"""What it configures."""

TAGS = Tags("<Outlines>", "<Outline>", "</Outlines>", "<Thread>", "</Thread>", before_closing="\n")


class Threads(FanOut):
    """Joins threads without the line breaks before all but the first."""

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        line_break = prefix_ids_of("\n", self._tokenizer)
        merged: list[Piece] = []
        for index, child in enumerate(children):
            prefix = child.prefix_token_ids
            is_followed = index > 0 and prefix[: len(line_break)] == line_break
            merged += [*(prefix[len(line_break) :] if is_followed else prefix), child, *self._closing(child)]
        return [*merged, self._after]


def handler(tokenizer: Tokenizer) -> Threads:
    """Fans out a child for each ``<Outline>``."""
    return Threads(tokenizer, TAGS, after="\n")
