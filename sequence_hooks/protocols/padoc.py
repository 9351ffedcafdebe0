# SPDX-License-Identifier: Apache-2.0
"""PaDoc (arXiv 2608.06146): a layout is sampled, and at each fork token a branch with a block's content begins::

    The layout:   layout 1 [fork] layout 2 [fork] ... EOS
    A child:      the layout up to its fork token, then metadata and text, up to EOS
    The output:   each fork token is replaced by its branch

Read in its README (Longin-Yu/Padoc): one branch for each fork token; layout and branches advance side by side. A
summary says that there are at most 255 branches, which do not see each other.

``promise_token`` has to be given: ``[fork]`` is the README's notation in a diagram, and no public checkpoint has it.

Not confirmed: the fork token's text, whether a branch begins with tokens of its own, what ends it, and how its output
is put together: here as `sequence_hooks.protocols.hpd` does.
"""

from sequence_hooks.config.notations import Notation

NOTATION = Notation(
    fields={"block_on": "never", "max_children": 255, "max_tree_sequences": 256, "merge_separator": ""},
    required={"promise_token": "no public checkpoint tells the text of its fork token; give that of your model's"},
)
"""What it configures."""
