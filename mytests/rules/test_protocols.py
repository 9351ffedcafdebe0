# SPDX-License-Identifier: Apache-2.0
"""Each published notation by its name alone, on scripted streams."""

from typing import Any

import pytest

from mytests.harness.notations import (
    ALL,
    APR,
    APR_CALLS,
    APR_NODES,
    APR_WITH_BOS,
    ASYNCTHINK,
    HPD,
    PADOC,
    PARALLEL_R1,
    PASTA,
)
from mytests.harness.small_tokenizers import legacy_llama
from mytests.harness.surgical import Prompts, SurgicalEngine, finished, tree
from mytests.harness.tagged import MAX_STEPS, Notation, children_of, run, text_of
from mytests.harness.tiers import names
from sequence_hooks.config.notations import protocols


def context_of(notation: Notation, engine: SurgicalEngine) -> str:
    """The text of the request's context after its prompt."""
    output = finished(engine)
    kept = [each for each in output.segments if not each.is_replaced]
    return notation.text([token_id for each in kept for token_id in output.token_ids[each.start : each.end]])


LAYOUT = "<BLOCK>title [1,2,3,4]<FORK><BLOCK>image [5,6,7,8]<BLOCK>text [9,9,9,9]<FORK>"
PETS = 'Pets: <promise topic="cats"/> and <promise topic="dogs"/>.<sync/>'
FORKS = "so <FORK-1>even roots</FORK-1> and <FORK-2>odd roots</FORK-2> then "
TWICE = "<FORK-7>a</FORK-7><JOIN-7><FORK-7>b</FORK-7><JOIN-7>."
PATHS = "<Path>2+2</Path><Path>1+3</Path></Parallel>\n<Summary>"

STREAMS_OF: dict[str, tuple[Notation, tuple[Any, ...], str]] = {
    "parallel_r1: an opening tag forks, whatever the model says": (
        PARALLEL_R1, ("so <Parallel>both agree</Summary> 4", "2+2</Path>", "1+3</Path>"),
        f"so <Parallel>{PATHS}both agree</Summary> 4",
    ),
    "parallel_r1: paths do not fork, and get the closing tag that they lack": (
        PARALLEL_R1, ("<Parallel>on", "<Parallel>x", "y</Path>"),
        "<Parallel><Path><Parallel>x</Path><Path>y</Path></Parallel>\n<Summary>on",
    ),
    "pasta: chunks are decoded beside the main thread, which sees them after the sync": (
        PASTA, (PETS + " Both.", "Cats purr.</async>", "Dogs bark a lot.</async>"),
        PETS + "<async>Cats purr.</async><async>Dogs bark a lot.</async> Both.",
    ),
    "hpd: a child does not fork, and an empty one leaves its tag": (
        HPD, ("a<FORK>b<FORK>", "x<FORK>y<|im_end|>", "<|im_end|>"), "a<CHILD>x<FORK>yb<CHILD>",
    ),
    "padoc: branches stand where the layout forks": (PADOC, ("one [fork] two [fork]", "1", "22"), "one 1 two 22"),
    "padoc: a field beside the protocol overrides it": (
        Notation("padoc", ["<|fork|>"], promise_token="<|fork|>"), ("one <|fork|> two", "1"), "one 1 two",
    ),
    "asyncthink: a worker is joined by its number, while the other still thinks": (
        ASYNCTHINK,
        (f"{FORKS}<JOIN-2>fewer<JOIN-1>so three.", "Hm. " * 20 + "<RETURN>two</RETURN>", "Hm.<RETURN> one </RETURN>"),
        f"{FORKS}<JOIN-2>one</JOIN-2>fewer<JOIN-1>two</JOIN-1>so three.",
    ),
    "asyncthink: without a return it is all that a worker says, and a number may be used again": (
        ASYNCTHINK, (TWICE, "it is A", "it is B"),
        "<FORK-7>a</FORK-7><JOIN-7>it is A</JOIN-7><FORK-7>b</FORK-7><JOIN-7>it is B</JOIN-7>.",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("notation", "texts", "text"), STREAMS_OF.values(), ids=STREAMS_OF)
def test_a_stream_becomes(notation: Notation, texts: tuple[Any, ...], text: str) -> None:
    """As in the engines of its authors."""
    assert text_of(notation, run(notation, **tree(*texts))) == text


APR_CALL = "<Calling Sub Searches>\n<Start Sub Search 0 at level 1> Moving to Node #{}\n<End Calling Sub Searches>"
UNREADABLE = (
    "Moving to Node #0\nCurrent State: 1:[2], Operations: [oops]\nGenerated Node #0,0: 1:[2] Operation: x\n"
    + APR_CALL.format("0,0")
)
TEXTS: dict[str, tuple[Notation, str, tuple[str, ...]]] = {
    "pasta: a line break of HTML, and a sync without promises": (PASTA, "a<br/>b/>c<sync/>d", ()),
    "pasta: a malformed promise": (PASTA, 'a<promise topic="x<y"/>b<sync/>d', ("malformed",)),
    "apr: no calls": (APR, "<End Calling Sub Searches>on", ("malformed",)),
    "apr: empty": (APR, "<Calling Sub Searches>\n<End Calling Sub Searches>on", ("malformed",)),
    "apr: an unknown node": (APR, APR_CALL.format(7) + "on", ("malformed",)),
    "apr: an unreadable node": (APR, UNREADABLE + "on", ("malformed",)),
    "asyncthink: a join without its fork": (ASYNCTHINK, "a > b <br> <JOIN-1>c", ("wait_for",)),
    "asyncthink: a fork that was not opened": (ASYNCTHINK, "</FORK-1> <JOIN-x> <FORK-2>a</FORK-3>b", ("malformed",)),
    "asyncthink: a long number": (ASYNCTHINK, "<JOIN-1234567890>", ()),
}


@pytest.mark.parametrize(("notation", "text", "limits_met"), TEXTS.values(), ids=TEXTS)
def test_what_is_malformed_is_text(notation: Notation, text: str, limits_met: tuple[str, ...]) -> None:
    """Nothing is spawned, and the sequence goes on; the caller is told of what was meant as a fork."""
    engine = run(notation, r=text)
    assert (text_of(notation, engine), children_of(engine)) == (text, ())
    assert finished(engine).limits_met == limits_met


@pytest.mark.parametrize(
    ("notation", "text"),
    [(PASTA, "<promise/>b<br/><sync/>d"), (APR, APR_NODES + APR_CALLS.replace("#0,1", "#7") + "on")],
    ids=["a tag that ends alike", "a call of an unknown node"],
)
def test_a_malformed_part_costs_itself_alone(notation: Notation, text: str) -> None:
    """The other one is a child."""
    engine = run(notation, r=text, r_child_0="x</async>")
    assert len(children_of(engine)) == 1
    assert finished(engine).limits_met == (() if notation is PASTA else ("malformed",))


def test_a_promise_without_a_sync_is_kept() -> None:
    """Its chunk follows all that the main thread has sampled."""
    text = text_of(PASTA, run(PASTA, r="<promise/>main", r_child_0="chunk</async>"))
    assert text.startswith("<promise/>main") and text.endswith("<async>chunk</async>")


class TestHpd:
    def test_texts_stand_where_the_layout_forks(self) -> None:
        """The layout never waits: each fork is replaced by a child's tag and its text."""
        engine = run(HPD, r=LAYOUT, r_child_0="A Title<|im_end|>", r_child_1="Much text.<|im_end|>")
        expected = LAYOUT.replace("<FORK>", "<CHILD>A Title", 1).replace("<FORK>", "<CHILD>Much text.")
        assert text_of(HPD, engine) == expected
        output = finished(engine)
        assert output.sampled is not None and HPD.text(output.sampled.token_ids) == LAYOUT

    def test_a_child_sees_the_layout_before_its_fork(self) -> None:
        """With its own tag in place of the fork; forks before that one are in it."""
        prompts: Prompts = {}
        run(HPD, prompts=prompts, r=LAYOUT, r_child_0="A<|im_end|>", r_child_1="B<|im_end|>")
        before = LAYOUT.rpartition("<FORK>")[0]
        assert HPD.text(prompts["r_child_1"]).endswith(before + "<CHILD>")

    @pytest.mark.parametrize("num_blocks", names([70, 100], [70]))
    def test_a_page_of_many_slow_blocks_loses_nothing(self, num_blocks: int) -> None:
        """At most 64 branches run at a time, the others wait, and the layout goes on."""
        engine = HPD.engine(other_sizes={"max_num_seqs": 128, "num_blocks": 8192})
        texts = {f"r_child_{number}": f"{number}{'x' * num_blocks}<|im_end|>" for number in range(num_blocks)}
        stream, most = HPD.stream(r="<FORK>" * num_blocks, **texts), 0
        while not engine.is_idle():
            engine.step(stream)
            most = max(most, sum(status == "RUNNING" for name, status in engine.statuses().items() if name != "r"))
        slow = "".join(f"<CHILD>{number}{'x' * num_blocks}" for number in range(num_blocks))
        assert (text_of(HPD, engine), most, finished(engine).limits_met) == (slow, 64, ())
        engine.assert_empty()


class TestApr:
    """As in Parallel-Reasoning/APR, commit 5577928; `sequence_hooks.protocols.apr` names the files."""

    PATH = "Moving to Node #0,0\n4*6=24\n24,24 equal: Goal Reached"
    RESULTS = (
        f"<Sub Searches>\n<Goal Reached in Sub Search 0 at level 1 at Node #0,0>\n{PATH}\n"
        "<No Solution in Sub Search 1 at level 1 at Node #0,1>\n<End Sub Searches>\n"
    )
    NO_RESULTS = (
        "<Sub Searches>\n<No Solution in Sub Search 0 at level 1 at Node #0,0>\n"
        "<No Solution in Sub Search 1 at level 1 at Node #0,1>\n<End Sub Searches>\n"
    )

    def test_sub_searches_begin_at_their_nodes(self) -> None:
        """With nothing of their parent's context but what it says of the node."""
        prompts: Prompts = {}
        run(APR, prompts=prompts, r=APR_NODES + APR_CALLS, r_child_0="x", r_child_1="y")
        assert APR.text(prompts["r_child_0"]) == (
            "Moving to Node #0,0\nCurrent State: 24:[4, 6], Operations: ['9-3=6']"
        )

    def test_results_come_in_the_place_of_calls(self) -> None:
        """As in ``get_main_trace_after_sub_search`` of its client, and in the traces of ``_parallel_search``."""
        engine = run(
            APR, r=APR_NODES + APR_CALLS + "so", r_child_0=f"{self.PATH}\n{self.PATH}", r_child_1="No solution found."
        )
        assert context_of(APR, engine) == f"{APR_NODES}{self.RESULTS}so"
        assert text_of(APR, engine) == f"{APR_NODES}{APR_CALLS}{self.RESULTS}so"

    @pytest.mark.rule(4)
    def test_no_space_is_put_where_results_are_inserted(self) -> None:
        """With a tokenizer of Llama 2's kind, as its models have."""
        notation = Notation("apr", [], base=legacy_llama())
        engine = run(notation, r=APR_NODES + APR_CALLS + "so", r_child_0=f"{self.PATH}\n{self.PATH}", r_child_1="none")
        assert context_of(notation, engine) == f"{APR_NODES}{self.RESULTS}so"

    def test_a_later_call_sees_no_earlier_one(self) -> None:
        """Each block of calls is replaced alone, and results of earlier ones stay."""
        prompts: Prompts = {}
        again = "Exploring\n" + APR_CALLS
        engine = run(APR, "No solution found.", prompts, r=APR_NODES + APR_CALLS + again + "so")
        results = self.NO_RESULTS
        assert context_of(APR, engine) == f"{APR_NODES}{results}Exploring\n{results}so"
        assert APR.text(prompts["r_child_2"]) == APR.text(prompts["r_child_0"])

    @pytest.mark.rule(16)
    @pytest.mark.parametrize("depth", [0, 1])
    def test_results_that_a_search_would_invent_become_calls(self, depth: int) -> None:
        """As ``decode_trace`` of its client rewrites them, in a sub-search as well."""
        invented = APR_NODES + "<Sub Searches>"
        calls = APR_CALLS.removeprefix("<Calling Sub Searches>")
        texts = (
            {"r": invented + calls + "so"} if depth == 0 else {"r": APR_NODES + APR_CALLS, "others": invented + "on"}
        )
        engine = run(APR, **{"others": "none", **texts})
        if depth == 0:
            assert context_of(APR, engine) == f"{APR_NODES}{self.NO_RESULTS}so"
            assert text_of(APR, engine) == f"{invented}{APR_CALLS}{self.NO_RESULTS}so"
        else:
            (child, _) = children_of(engine)
            assert APR.text(child.token_ids) == f"{invented}<Calling Sub Searches>on"

    def test_a_child_begins_with_bos_twice(self) -> None:
        """``generate`` and ``process_pretrain_example`` write it, and a Llama tokenizer adds another one."""
        prompts: Prompts = {}
        run(APR_WITH_BOS, "none", prompts, r=APR_NODES + APR_CALLS)
        bos = APR_WITH_BOS.tokenizer.bos_token_id
        assert prompts["r_child_0"][:3] == [bos, bos, *APR_WITH_BOS.ids("M")]


class TestAsyncThink:
    def test_a_worker_sees_its_query_alone(self) -> None:
        """Nothing of the organizer's context."""
        prompts: Prompts = {}
        run(ASYNCTHINK, "<RETURN>x</RETURN>", prompts, r=f"{FORKS}<JOIN-1>.")
        assert [ASYNCTHINK.text(prompts[f"r_child_{each}"]) for each in (0, 1)] == ["even roots\n", "odd roots\n"]

    def test_it_is_asked_as_a_user_asks_where_there_is_a_template(self) -> None:
        """With the words that the tokenizer's chat template puts around a message."""
        asked = Notation("asyncthink", [])
        asked.tokenizer.chat_template = "U:{{ messages[0]['content'] }}{% if add_generation_prompt %} A:{% endif %}"
        prompts: Prompts = {}
        run(asked, "<RETURN>x</RETURN>", prompts, r=f"{FORKS}.")
        assert asked.text(prompts["r_child_0"]) == "U:even roots A:"

    def test_of_two_with_one_number_the_later_is_meant(self) -> None:
        """The other is never joined, and its authors drop it."""
        main = "<FORK-1>a</FORK-1><FORK-1>b</FORK-1><JOIN-1>."
        engine = run(ASYNCTHINK, r=main, r_child_0="<RETURN>A</RETURN>", r_child_1="<RETURN>B</RETURN>")
        assert text_of(ASYNCTHINK, engine) == "<FORK-1>a</FORK-1><FORK-1>b</FORK-1><JOIN-1>B</JOIN-1>."
        assert [child.cancelled for child in children_of(engine)] == [True, False]

    def test_a_worker_that_is_never_joined_is_dropped(self) -> None:
        """The organizer's answer waits for nobody."""
        engine = run(ASYNCTHINK, r="<FORK-1>a</FORK-1>so two.", r_child_0="Let me think. " * 20)
        assert text_of(ASYNCTHINK, engine) == "<FORK-1>a</FORK-1>so two."
        assert [child.finish_reason for child in children_of(engine)] == ["cancelled"]

    def test_what_it_remembers_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest labels are forgotten."""
        monkeypatch.setattr("sequence_hooks.protocols.asyncthink._MAX_LABELS", 1)
        engine = run(ASYNCTHINK, r="<FORK-1>a</FORK-1><FORK-2>b</FORK-2><JOIN-1>c", r_child_0="A", r_child_1="B")
        assert text_of(ASYNCTHINK, engine).startswith("<FORK-1>a</FORK-1><FORK-2>b</FORK-2><JOIN-1>c")


class TestEveryProtocol:
    def test_each_has_its_tests(self) -> None:
        """On an engine that knows it by its name."""
        assert {notation.name for notation in ALL} == set(protocols())

    @pytest.mark.parametrize("notation", ALL, ids=lambda notation: notation.name)
    @pytest.mark.parametrize("length", names([1, 7, 40], [7]))
    def test_a_cut_stream_ends(self, notation: Notation, length: int) -> None:
        """Wherever max_tokens cuts a sequence, it ends with the tokens that it has."""
        engine = notation.engine(max_tokens=length)
        text = "".join(STREAMS[notation.name])
        engine.run(notation.stream(text, r=text), MAX_STEPS)
        assert finished(engine).finish_reason == "length"


STREAMS = {
    "npr": ("<guideline><plan>1: a</plan><plan>2: b</plan></guideline>", "then " * 20),
    "multiverse": ("<Goal><Outline>1: a</Outline></Goal>", "then " * 20),
    "threadweaver": ("<Outlines><Outline>1: a</Outline></Outlines>", "then " * 20),
    "parallel_r1": ("a<Parallel>", "then " * 20),
    "pasta": ('<promise topic="a"/>', "<sync/>", "then " * 20),
    "hpd": ("a<FORK>b<FORK>", "then " * 20),
    "padoc": ("a[fork]b[fork]", "then " * 20),
    "apr": (APR_NODES, APR_CALLS, "then " * 20),
    "skeleton": ("1. a\n2. b\n###", "then " * 20),
    "asyncthink": ("<FORK-1>a</FORK-1>", "<JOIN-1>", "then " * 20),
}
