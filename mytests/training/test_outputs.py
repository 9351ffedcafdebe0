# SPDX-License-Identifier: Apache-2.0
"""Trees from what an engine returns, here from outputs put together by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sequence_hooks.results import ChildOutput, Join, Segment
from sequence_hooks.training import NO_VERSION, TokenTree, TreeBatch, continuable, lay_out, plain_rows, token_trees

EOS = 2


def child(**changes: Any) -> ChildOutput:
    """A child that sampled 7 and 8, and ended by EOS."""
    fields: dict[str, Any] = {
        "request_id": "r_child_0",
        "spawn_position": 2,
        "num_shared": 4,
        "prefix_token_ids": (5,),
        "is_detached": False,
        "text": "",
        "token_ids": (7, 8, EOS),
        "logprobs": (-1.0, -2.0, -3.0),
        "result_token_ids": (7, 8),
        "finish_reason": "stop",
        "failed": False,
        "children": (),
        "segments": (),
        "joins": (),
        "spawn_time": 0.0,
        "finished_time": 1.0,
    }
    return ChildOutput(**fields | changes)


def completion(**changes: Any) -> Any:
    """A completion that sampled 6, 3 and 4, got 7 and 8, and then sampled EOS."""
    token_ids = (6, 3, 4, 7, 8, EOS)
    fields: dict[str, Any] = {
        "index": 0,
        "request_id": None,
        "sampled": None,
        "token_ids": token_ids,
        "logprobs": [{token_id: SimpleNamespace(logprob=-0.5), 99: None} for token_id in token_ids],
        "children": (child(),),
        "segments": (Segment(0, 3, "sampled"), Segment(3, 5, "merged", "r_child_0"), Segment(5, 6, "sampled")),
        "joins": (),
        "has_older_kv": False,
        "recomputed_at": (5,),
    }
    return SimpleNamespace(**fields | changes)


def output(*completions: Any, **changes: Any) -> Any:
    """A finished request, by default with one completion."""
    fields: dict[str, Any] = {"request_id": "r", "prompt_token_ids": [1, 1], "finished": True}
    return SimpleNamespace(outputs=list(completions or [completion()]), **fields | changes)


def test_a_tree_has_what_the_output_says() -> None:
    """Tokens, logprobs and children; the prompt is the root's own."""
    (tree,) = token_trees(output())
    assert (tree.name, tree.num_prompt, tree.prompt_token_ids) == ("r", 2, (1, 1))
    assert (tree.output_token_ids, tree.logprobs) == ((6, 3, 4, 7, 8, EOS), (-0.5,) * 6)
    assert tree.recomputed_at == (5,)
    (below,) = tree.children
    assert (below.name, below.num_shared, below.prompt_token_ids) == ("r_child_0", 4, (5,))
    assert (below.output_token_ids, below.logprobs, below.result) == ((7, 8, EOS), (-1.0, -2.0, -3.0), (0, 1))


def test_a_sequence_without_hook_tokens_has_sampled_all() -> None:
    """It reports no segments, and a child that never ran has none. Each sample has its tree, named by its index."""
    never = child(token_ids=(), result_token_ids=(), failed=True)
    given = (completion(segments=(), children=(never,), logprobs=None), completion(index=1))
    first, second = token_trees(output(*given))
    assert (first.segments, first.last_sampled, first.logprobs) == ((Segment(0, 6, "sampled"),), 5, None)
    assert (first.children[0].segments, first.children[0].last_sampled) == ((), -1)
    assert (first.name, second.name) == ("0_r", "1_r")


def test_a_cancelled_child_has_no_result() -> None:
    """Also if the last that it got was a join; one that was too late has ended as any other."""
    segments = (Segment(0, 1, "sampled"), Segment(1, 3, "merged", "r_child_0_child_0"))
    cancelled = child(finish_reason="cancelled", cancelled=True, result_token_ids=(), segments=segments)
    late = child(request_id="r_child_1", cancelled=True)
    (tree,) = token_trees(output(completion(children=(cancelled, late))))
    assert [(below.has_failed, below.result, below.is_trained) for below in tree.children] == [
        (True, (), True),
        (False, (0, 1), True),
    ]


def test_with_detached_children_the_sampled_form_is_read() -> None:
    """The output has their results where they were spawned, which no context had."""
    own = SimpleNamespace(token_ids=(6, 3, EOS), segments=(Segment(0, 3, "sampled"),), logprobs=None)
    (tree,) = token_trees(output(completion(sampled=own)))
    assert (tree.output_token_ids, tree.segments, tree.logprobs) == (own.token_ids, own.segments, None)


@pytest.mark.parametrize(("num_shared", "sees_parent"), [(4, True), (3, False), (0, False)])
def test_a_child_sees_its_parent_if_it_shares_all_of_it(num_shared: int, sees_parent: bool) -> None:
    """Not if it lacks the trigger that started it."""
    (tree,) = token_trees(output(completion(children=(child(num_shared=num_shared),))))
    assert tree.children[0].sees_parent == sees_parent


LATE = (Segment(0, 2, "sampled"), Segment(2, 4, "merged", "r_child_0_child_0"))


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        # A child that ended before its own children gets their results at its very end.
        ({"token_ids": (7, EOS, 9, 9), "result_token_ids": (7, 9, 9), "segments": LATE}, (0, 2, 3)),
        # Whatever it has sampled.
        ({"failed": True, "result_token_ids": ()}, ()),
    ],
    ids=["what came after the end is part of it", "that of a failed child is empty"],
)
def test_a_result_is_what_its_parent_gets(changes: dict[str, Any], result: tuple[int, ...]) -> None:
    """Another one would be merged from the wrong rows, and is refused."""
    (tree,) = token_trees(output(completion(children=(child(**changes),))))
    assert tree.children[0].result == result
    with pytest.raises(ValueError, match="the result of r_child_0 is not its output without"):
        token_trees(output(completion(children=(child(result_token_ids=(8, 7)),))))


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"finished": False}, "request r has not finished"), ({"prompt_token_ids": None}, "r has no prompt_token_ids")],
)
def test_what_is_refused(changes: dict[str, Any], told: str) -> None:
    """The error names the request."""
    with pytest.raises(ValueError, match=told):
        token_trees(output(**changes))


TOLD = {name: value for name, value in vars(completion(request_id="r")).items() if name not in ("logprobs", "sampled")}
CHOICE = msgspec.to_builtins(TOLD) | {"finish_reason": "stop"}
NUMBERS = [-0.5] * 6
RESPONSES: dict[str, dict[str, Any]] = {
    "completion": {"choices": [{**CHOICE, "prompt_token_ids": [1, 1], "logprobs": {"token_logprobs": NUMBERS}}]},
    "chat, tokens": {
        "prompt_token_ids": [1, 1],
        "choices": [{**CHOICE, "logprobs": {"content": [{"logprob": each} for each in NUMBERS]}}],
    },
    "detached": {
        "prompt_token_ids": [1, 1],
        "choices": [
            {**CHOICE, "token_ids": [9], "segments": [], "sampled": {**CHOICE, "logprobs": NUMBERS}, "logprobs": None}
        ],
    },
}


@pytest.mark.parametrize("form", RESPONSES)
def test_a_servers_response_has_the_same_tree(form: str) -> None:
    """Whichever route has answered."""
    assert token_trees({"id": "other", **RESPONSES[form]}) == token_trees(output(completion(request_id="r")))
    (tree,) = token_trees({"id": "r", "prompt_token_ids": [1], "choices": [{**CHOICE, "logprobs": None}]})
    assert tree.logprobs is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"token_ids": None}, "choice 0 of r has no token_ids; ask for them by return_token_ids"),
        ({"prompt_token_ids": None}, "choice 0 of r has no prompt_token_ids; ask for them by return_token_ids"),
        ({"finish_reason": None}, "choice 0 of r has not finished; give a whole response"),
        ({"logprobs": {"token_logprobs": [0.0] * 8}}, "has 6 tokens and 8 log-probabilities; leave echo out"),
    ],
)
def test_a_response_that_lacks_something_says_what_to_ask_for(changes: dict[str, Any], told: str) -> None:
    """Nothing is guessed; a prompt may be given, as who has sent it knows it."""
    choice = {**RESPONSES["completion"]["choices"][0], **changes}
    with pytest.raises(ValueError, match=told):
        token_trees({"request_id": "r", "choices": [choice]})
    if "prompt_token_ids" in changes:
        (tree,) = token_trees({"request_id": "r", "choices": [choice]}, prompt_token_ids=[1, 1])
        assert tree.prompt_token_ids == (1, 1)


def test_each_target_has_the_version_of_its_weights() -> None:
    """In both layouts; where no hook was met, upstream's own spans are read."""
    old, new = (Segment(0, 3, "sampled", weight_version="old"), Segment(5, 6, "sampled", weight_version="new"))
    below = child(num_shared=4, segments=(Segment(0, 3, "sampled", weight_version="new"),), has_older_kv=True)
    given = completion(segments=(old, Segment(3, 5, "merged", "r_child_0"), new), children=(below,), has_older_kv=True)
    (tree,) = token_trees(output(given))
    assert (tree.has_older_kv, tree.children[0].has_older_kv) == (True, True)
    batch = TreeBatch.of([lay_out([tree], "concatenate")], pad_token_id=0)
    told = zip(batch.target_ids[0].tolist(), batch.weight_version_ids[0].tolist(), strict=True)
    laid_out = sorted((token_id, batch.weight_versions[each]) for token_id, each in told if each != NO_VERSION)
    rows = [zip(row.token_ids, row.weight_versions, strict=True) for row in plain_rows(tree)]
    plain = sorted((token_id, each) for row in rows for token_id, each in row if each is not None)
    assert laid_out == plain == [*[(EOS, "new")] * 2, (3, "old"), (4, "old"), (6, "old"), (7, "new"), (8, "new")]
    (tree,) = token_trees(
        output(completion(segments=(), children=(), weight_versions=[SimpleNamespace(version="a", start=0, end=6)]))
    )
    assert tree.segments == (Segment(0, 6, "sampled", weight_version="a"),)


@pytest.mark.parametrize(
    ("output", "results", "merged", "kept"),
    [
        ("aPbSAcPd", "AB", "A", "aPbSAc"),
        ("aPPcSBe", "AB", "B", "a"),
        ("aPbSc", "-", "", "aPbSc"),
        ("aPbSc", "A", "", "aPbSc"),
        ("aPb", "-", "", "a"),
    ],
)
def test_an_answer_goes_on_before_its_first_open_fork(output: str, results: str, merged: str, kept: str) -> None:
    """P is a promise, S a sync, "-" an empty result. One whose context was replaced cannot go on."""
    empty = TokenTree("r", 0, (), (), (), (), ())
    spawned = (position for position, letter in enumerate(output, 1) if letter == "P")
    children = [
        replace(empty, name=each, spawn_position=next(spawned), result=(0,) * (each != "-")) for each in results
    ]
    joins = [Join(position, len(merged), 0, 0) for position, letter in enumerate(output, 1) if letter == "S"]
    parts = tuple(Segment(output.index(each), output.index(each) + 1, "merged", each) for each in merged)
    ids = tuple(map(ord, output))
    tree = replace(empty, output_token_ids=ids, segments=parts, joins=tuple(joins), children=tuple(children))
    assert "".join(map(chr, continuable(tree))) == kept
    with pytest.raises(ValueError, match=r"r has joins that replaced its context, .*; send its prompt alone"):
        continuable(replace(tree, joins=(Join(0, 0, 0, 0, num_replaced=1),)))
