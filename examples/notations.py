# SPDX-License-Identifier: Apache-2.0
"""The tiny model's task in two published notations: what it samples, and what its children do.

As in `forkjoin_task`, each child sorts the letters of one word, and what the parent does with the results depends on
the notation::

    threadweaver   weave 1 stone 2 apple                                  the prompt
                   <Parallel>
                   <Outlines>
                   <Outline>1: stone</Outline>
                   <Outline>2: apple</Outline>
                   </Outlines>                                            sampled; it fires a child for each outline
                   <Thread>
                   1: enost
                   </Thread><Thread>
                   2: aelpp
                   </Thread>                                              merged, with the children's tags
                   </Parallel>
                   = ea                                                   sampled: the results' first letters

    hpd            list 1 stone 2 apple                                   the prompt
                   1 <FORK>                                               sampled; <FORK> becomes <CHILD>enost
                   2 <FORK>                                               and <CHILD>aelpp

All tags of the first are several tokens: one for each character. Those of the second are one token each.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forkjoin_reference import MODEL_FOLDER
from forkjoin_task import EOS, is_held_out, last_line, random_words, sort_letters

from sequence_hooks.training import Fork, InsertedText, ResultOf, SampledText, TextTree

Pieces = list[SampledText | InsertedText | Fork | ResultOf]


@dataclass(frozen=True)
class Notation:
    """The task in one notation."""

    protocol: str
    verb: str
    """What its prompts begin with."""

    characters: str
    """Tokens that it needs besides the tiny model's own."""

    tags: tuple[str, ...]
    """Those that are one token each."""

    most_items: int
    output: Callable[[Sequence[str], Sequence[str]], Pieces]
    """What the request samples and gets, from the words and the results of their children."""

    expected: Callable[[Sequence[str]], str]
    """The text of the whole output, without the EOS."""

    @property
    def model_folder(self) -> Path:
        """The tiny model that was trained for it."""
        return MODEL_FOLDER.parent / f"forkjoin-{self.protocol}"

    def prompt(self, words: Sequence[str]) -> str:
        """The prompt that asks for ``words``."""
        return f"{self.verb} {' '.join(f'{number} {word}' for number, word in enumerate(words, 1))}\n"

    def words(self, prompt: str) -> list[str]:
        """The inverse of `prompt`."""
        return prompt.split()[2::2]

    def tree(self, words: Sequence[str], results: Sequence[str]) -> TextTree:
        """The run for ``words`` whose children give ``results``."""
        return TextTree("parent", self.prompt(words), tuple(self.output(words, results)))

    def training_trees(self, seed: int) -> Iterator[TextTree]:
        """Endless trees of training words. In half of them the results are not the right ones."""
        rng = random.Random(f"{self.protocol} {seed}")
        while True:
            words = random_words(rng, held_out=False)[: self.most_items]
            results = [sort_letters(word) for word in words]
            if rng.random() < 0.5:
                results = ["".join(rng.sample(word, len(word))) for word in words]
            yield self.tree(words, results)

    def held_out_prompts(self, count: int, seed: int) -> list[str]:
        """Prompts of words that no training tree has; the same ones for the same arguments."""
        rng = random.Random(f"{self.protocol} held out {seed}")
        found = (random_words(rng, held_out=True)[: self.most_items] for _ in range(count))
        return [self.prompt(words) for words in found]

    def is_correct(self, prompt: str, output: str) -> bool:
        """Whether the whole output is right."""
        return output.removesuffix(EOS) == self.expected(self.words(prompt))


def _child(number: int, word: str, prefix: str, result: str, end: str) -> TextTree:
    is_right = result.strip() == sort_letters(word)
    assert not is_held_out(word) or is_right
    # The parent learns from a result that is not the right one, and the child does not.
    pieces = (SampledText(result), SampledText(end, in_result=False))
    return TextTree(f"child {number}", prefix, pieces, is_trained=is_right)


def _weave(words: Sequence[str], results: Sequence[str]) -> Pieces:
    outlines = "".join(f"<Outline>{number}: {word}</Outline>\n" for number, word in enumerate(words, 1))
    pieces: Pieces = [SampledText(f"<Parallel>\n<Outlines>\n{outlines}</Outlines>")]
    children = [
        _child(number, word, f"\n<Thread>\n{number}:", f" {result}\n", "</Thread>")
        for number, (word, result) in enumerate(zip(words, results, strict=True), 1)
    ]
    pieces += [Fork(child) for child in children]
    for number, child in enumerate(children, 1):
        line_break = "\n" if number == 1 else ""
        pieces += [InsertedText(f"{line_break}<Thread>\n{number}:"), ResultOf(child.name), InsertedText("</Thread>")]
    return [*pieces, InsertedText("\n"), SampledText(f"</Parallel>\n{last_line(results)}{EOS}")]


def _woven(words: Sequence[str]) -> str:
    pieces = _weave(words, [sort_letters(word) for word in words])
    results = iter(f" {sort_letters(word)}\n" for word in words)
    texts = (
        next(results) if isinstance(piece, ResultOf) else piece.text for piece in pieces if not isinstance(piece, Fork)
    )
    return "".join(texts).removesuffix(EOS)


def _list(words: Sequence[str], results: Sequence[str]) -> Pieces:
    pieces: Pieces = []
    for number, (word, result) in enumerate(zip(words, results, strict=True), 1):
        # What a child sees ends before the fork.
        child = _child(number, word, "<CHILD>", result, "<|im_end|>")
        pieces += [SampledText(f"{number} "), Fork(child), SampledText("<FORK>\n")]
    return [*pieces, SampledText(EOS)]


def _listed(words: Sequence[str]) -> str:
    return "".join(f"{number} <CHILD>{sort_letters(word)}\n" for number, word in enumerate(words, 1))


NOTATIONS = {
    each.protocol: each
    for each in (
        Notation("threadweaver", "weave", "<>/:OPT", (), 4, _weave, _woven),
        Notation("hpd", "list", "", ("<FORK>", "<CHILD>", "<|im_end|>"), 8, _list, _listed),
    )
}
