# SPDX-License-Identifier: Apache-2.0
"""The output that results of detached children make up, derived from the tree as it was sampled."""

from mytests.fuzz.text import pieces
from mytests.fuzz.tree import Node
from mytests.fuzz.triggers import fired_by_text
from sequence_hooks import SpecialKwargs
from vllm import CompletionOutput

Token = tuple[int, str | None]
"""A token, and the name of the sequence that has it in its output; None if none has."""


def check_assembled(root: Node, hooks: SpecialKwargs, separator: tuple[int, ...]) -> None:
    """Check both orders of a finished request with detached children."""
    output = root.output
    assert isinstance(output, CompletionOutput)
    if not any(node.children for node in root.walk()) or not hooks.detaches or output.finish_reason == "abort":
        assert output.assembled is None and output.sampled is None, f"{root.name} has two orders"
        return
    assert output.assembled is not None and output.sampled is not None, f"{root.name} has one order"
    assert tuple(output.sampled.token_ids) == root.tokens, f"{root.name}: as sampled, it is {output.sampled}"
    expected = [token for tokens in _by_position(root, hooks, separator) for token in tokens]
    told = output.assembled
    assert list(told.token_ids) == [token_id for token_id, _ in expected], f"{root.name}: it is {told.token_ids}"
    owners = [each.child or (None if each.origin == "inserted" else root.name) for each in told.segments]
    lengths = [each.end - each.start for each in told.segments]
    found = [owner for owner, length in zip(owners, lengths, strict=True) for _ in range(length)]
    assert found == [owner for _, owner in expected], f"{root.name}: its segments are {told.segments}"
    assert told.logprobs is None or len(told.logprobs) == len(expected), f"{root.name}: {len(told.logprobs)} logprobs"
    text = "".join(pieces([token_id for token_id, _ in expected], root.params, root.prompt))
    # What ended it may be left out of its text.
    assert text.startswith(told.text), f"{root.name}: its text is {told.text!r}, and its tokens are {text!r}"


def _by_position(node: Node, hooks: SpecialKwargs, separator: tuple[int, ...]) -> list[list[Token]]:
    """What stands for each token of a sequence."""
    inserted = {p for s in node.segments if s.origin == "inserted" and not node.depth for p in range(s.start, s.end)}
    owners = (None if position in inserted else node.name for position in range(len(node.tokens)))
    tokens: list[list[Token]] = [[each] for each in zip(node.tokens, owners, strict=True)]
    replaced: set[int] = set()
    for position in sorted({child.output.spawn_position for child in node.children}):
        start = position - _num_trigger_tokens(node, position, hooks)
        tokens[start:position] = [tokens[index] if index in replaced else [] for index in range(start, position)]
        replaced.update(range(start, position))
        for child in node.children if hooks.child_merge_strategy != "none" else ():
            if child.output.spawn_position != position:
                continue
            within = _by_position(child, hooks, separator)
            if child.name != _first_of(node, position):
                tokens[start] += [(token_id, None) for token_id in separator]
            tokens[start] += [token for index in child.result for token in within[index]]
    return tokens


def _num_trigger_tokens(node: Node, position: int, hooks: SpecialKwargs) -> int:
    """How many tokens the trigger has that ends at ``position``. Nothing is merged where children are detached."""
    return 1 if hooks.promise_token is None else fired_by_text(hooks.promise_token, node.tokens[:position])[1]


def _first_of(node: Node, position: int) -> str:
    return next(child.name for child in node.children if child.output.spawn_position == position)
