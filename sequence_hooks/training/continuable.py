# SPDX-License-Identifier: Apache-2.0
"""What to send again of an answer that was aborted, for new weights say."""

from sequence_hooks.training.token_tree import TokenTree


def continuable(tree: TokenTree, num_trigger_tokens: int = 1) -> tuple[int, ...]:
    """The first output tokens of an aborted tree, up to its first fork whose results it has not got.

    An engine goes on from them if they follow the prompt: that fork is then sampled again, and has children again.

    Args:
        num_trigger_tokens: How many tokens spawn a child, as a promise does.

    Raises:
        ValueError: a join has replaced a part of the context, which is then another one than that of the output.
    """
    if any(join.num_replaced for join in tree.joins):
        raise ValueError(
            f"{tree.name} has joins that replaced its context, so its output is another; send its prompt alone"
        )
    forks = [child.spawn_position for child in tree.children if not _is_joined(tree, child)]
    return tree.output_token_ids[: min(forks) - num_trigger_tokens if forks else None]


def _is_joined(tree: TokenTree, child: TokenTree) -> bool:
    """Whether the sequence has got the result of a child, which may be empty, as that of one that has failed is."""
    is_merged = any(segment.child == child.name for segment in tree.segments)
    merges_nothing = not child.result or all(join.num_merged == 0 for join in tree.joins)
    return is_merged or (merges_nothing and any(join.position >= child.spawn_position for join in tree.joins))
