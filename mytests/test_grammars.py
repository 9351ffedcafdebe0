# SPDX-License-Identifier: Apache-2.0
"""PASTA, NPR and Multiverse on scripted streams of tokens."""

import re
from collections.abc import Callable
from types import ModuleType

import pytest
from grammars import multiverse, npr, pasta

from mytests.surgical import EOS, SurgicalEngine, finished, num_sampled
from sequence_hooks.tokens import with_token_ids
from vllm.engine.output_processor.sequence_hook import EngineFacts
from vllm.sampling_params import SamplingParams
from vllm.sequence import Sequence, SequenceGroup

PAIRED = ["async", "guideline", "plan", "step", "takeaway", "Parallel", "Goal", "Outline", "Path", "Conclusion"]
TAGS = ["/>", "<sync/>", "<promise", *(f"{bracket}{name}>" for name in PAIRED for bracket in ("<", "</"))]
FIRST_TAG = 0x4000


class TagTokenizer:
    """One token per tag, otherwise one per character."""

    unk_token_id = None

    def get_vocab(self) -> dict[str, int]:
        return {tag: FIRST_TAG + index for index, tag in enumerate(TAGS)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        vocab, ids, end = self.get_vocab(), [], 0
        for match in re.finditer("|".join(map(re.escape, TAGS)), text):
            ids += [*map(ord, text[end : match.start()]), vocab[match.group()]]
            end = match.end()
        return [*ids, *map(ord, text[end:])]

    def decode_sequence_inplace(self, seq: Sequence, params: SamplingParams) -> int:
        """Append the text of the last token, as a detokenizer does."""
        token_id = seq.get_last_token_id()
        text = TAGS[token_id - FIRST_TAG] if token_id >= FIRST_TAG else chr(token_id)
        seq.output_logprobs[-1][token_id].decoded_token = text
        seq.output_text += text
        return len(text)


TOKENIZER = TagTokenizer()


def engine_for(grammar: ModuleType) -> SurgicalEngine:
    """An engine with the hooks of a notation, and one request "r"."""
    hooks = with_token_ids(grammar.special_kwargs(TOKENIZER), TOKENIZER)
    facts = EngineFacts(TOKENIZER, FIRST_TAG + len(TAGS))
    engine = SurgicalEngine(
        hooks, max_model_len=512, num_blocks=256, tokenizer=TOKENIZER, detokenizer=TOKENIZER, facts=facts
    )
    engine.add(max_tokens=200)
    return engine


def stream(**texts: str) -> Callable[[SequenceGroup], int]:
    """Tokens from texts by request id, followed by the EOS."""

    def choose(group: SequenceGroup) -> int:
        tokens = [*TOKENIZER.encode(texts[group.request_id]), EOS]
        return tokens[num_sampled(group)]

    return choose


class TestPasta:
    def test_chunks_are_decoded_beside_the_main_thread(self) -> None:
        """The main thread continues after a promise, waits at the sync, and sees the chunks after it."""
        engine = engine_for(pasta)
        main = 'Pets: <promise topic="cats"/> and <promise topic="dogs"/>.<sync/> Both are fine.'
        script = stream(r=main, r_child_0="Cats purr.</async>", r_child_1="Dogs bark, and then they bark.</async>")
        engine.run(script)
        assert finished(engine).text == main.replace(
            "<sync/>",
            "<sync/><async>Cats purr.</async><async>Dogs bark, and then they bark.</async>",
        )
        engine.assert_empty()

    def test_a_child_begins_with_its_opening_tag(self) -> None:
        """The tag follows the child's own promise, without what its parent samples later."""
        engine = engine_for(pasta)
        engine.run(stream(r="<promise/>more<sync/>", r_child_0="x</async>"))
        (child,) = finished(engine).children
        assert child.spawn_position == len(TOKENIZER.encode("<promise/>"))
        assert list(child.prefix_token_ids) == TOKENIZER.encode("<async>")
        engine.assert_empty()


class TestNpr:
    def test_each_plan_becomes_a_step(self) -> None:
        """The parent waits at its closing tag, and resumes after the opening takeaway tag."""
        engine = engine_for(npr)
        plans = "<guideline><plan>1: add</plan><plan>2: check</plan></guideline>"
        script = stream(r=plans + "4</takeaway>", r_child_0=" 2+2</step>", r_child_1=" it is 4</step>")
        engine.run(script)
        steps = "<step>1: 2+2</step><step>2: it is 4</step>"
        assert finished(engine).text == plans + steps + "<takeaway>4</takeaway>"
        assert finished(engine).joins[0].num_prefill == len(TOKENIZER.encode(steps + "<takeaway>")) + 1
        engine.assert_empty()

    @pytest.mark.parametrize(
        "malformed",
        [
            "<guideline></guideline>",
            "</guideline>",
            "<plan></guideline>",
            "<guideline>" + "<plan>" * 17 + "</guideline>",
        ],
        ids=["no-plans", "never-opened", "plan-outside", "too-many"],
    )
    def test_malformed_blocks_are_text(self, malformed: str) -> None:
        """Nothing is spawned, and the sequence continues."""
        engine = engine_for(npr)
        engine.run(stream(r=malformed + "on"))
        assert (finished(engine).text, finished(engine).children) == (malformed + "on", ())
        engine.assert_empty()

    def test_a_second_block_counts_its_own_plans(self) -> None:
        """It spawns only its own plans; a closing tag without a block is text."""
        engine = engine_for(npr)
        one = "<guideline><plan>a</plan></guideline>"
        engine.run(stream(r=one + "so</guideline>" + one, r_child_0="x</step>", r_child_1="y</step>"))
        assert [child.text for child in finished(engine).children] == ["x", "y"]
        engine.assert_empty()


class TestMultiverse:
    def test_blocks_nest(self) -> None:
        """A path may itself fork; its conclusion is part of its result."""
        engine = engine_for(multiverse)
        outer = "<Parallel><Goal><Outline>1: a</Outline><Outline>2: b</Outline></Goal>"
        inner = "<Parallel><Goal><Outline>1: c</Outline></Goal>"
        script = stream(
            r=outer + "done</Conclusion></Parallel>",
            r_child_0=inner + "inner</Conclusion></Parallel></Path>",
            r_child_0_child_0="deep</Path>",
            r_child_1="flat</Path>",
        )
        engine.run(script)
        first = f"<Path>1:{inner}<Path>1:deep</Path><Conclusion>inner</Conclusion></Parallel></Path>"
        rest = "<Path>2:flat</Path><Conclusion>done</Conclusion></Parallel>"
        assert finished(engine).text == outer + first + rest
        engine.assert_empty()
