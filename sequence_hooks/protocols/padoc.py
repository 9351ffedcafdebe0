# SPDX-License-Identifier: Apache-2.0
"""PaDoc (arXiv 2608.06146): a layout is sampled, and at each fork token a branch with a block's content begins::

    The layout:   layout 1 [fork] layout 2 [fork] ... EOS
    A child:      the layout up to its fork token, then metadata and text, up to EOS
    The output:   each fork token is replaced by its branch

Read in its README (Longin-Yu/Padoc): one branch for each fork token; layout and branches advance side by side. A
summary says that there are at most 255 branches, which do not see each other.

Not confirmed: the fork token's text (``[fork]`` is that of the README's diagram; give ``promise_token`` if the model's
is another), whether a branch begins with tokens of its own, what ends it, and how its output is put together: here as
`sequence_hooks.protocols.hpd` does.
"""
