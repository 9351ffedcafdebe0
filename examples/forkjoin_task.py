# SPDX-License-Identifier: Apache-2.0
"""The task of the tiny fork-join model: its prompts, its training trees, its right answers.

Every child sorts the letters of one word; the parent's last line is the first letter of every
result, in order. In the mode "sync" the parent forks all of its children and joins them once::

    fork 1 stone 2 apple 3 river          the prompt
    1<promise>2<promise>3<promise><sync>  sampled by the parent
    enost                                 merged from the children (after `<sync>`, same line)
    aelpp
    eirrv
    = eae                                 sampled by the parent, with the newline before it

In the mode "promise" every promise is a call that returns before the parent continues, so `call ...`
gives ``1<promise>enost``, ``2<promise>aelpp``, ``3<promise>eirrv``, ``= eae``, each on its own line.
The modes are those of `SpecialKwargs.block_on`. Plain Python: no model, no tokenizer.
"""

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Literal

Mode = Literal["promise", "sync"]
MODES: tuple[Mode, ...] = ("sync", "promise")

EOS = "<eos>"
PROMISE = "<promise>"
SYNC = "<sync>"
CHILD = "<child>"
MERGE_SEPARATOR = "\n"

MIN_ITEMS, MAX_ITEMS = 2, 8
MIN_LETTERS, MAX_LETTERS = 3, 8
MAX_TOKENS = 40
"""More than any sequence of the task samples itself."""

_VERBS: dict[Mode, str] = {"sync": "fork", "promise": "call"}
_HELD_OUT_SHARE = 10
_FOREIGN_RESULTS_SHARE = 0.5


@dataclass(frozen=True)
class Piece:
    """Consecutive text of one sequence; `sampled` if the sequence itself decodes it."""

    text: str
    sampled: bool


@dataclass(frozen=True)
class Branch:
    """A child: its own pieces, after the first `fork` pieces of its parent."""

    pieces: tuple[Piece, ...]
    fork: int


@dataclass(frozen=True)
class Tree:
    """A whole run of one prompt; the parent's first piece is the prompt."""

    parent: tuple[Piece, ...]
    children: tuple[Branch, ...]


def is_held_out(word: str) -> bool:
    """Whether `word` is kept for evaluation: no training tree has it in its prompt."""
    return zlib.crc32(word.encode()) % _HELD_OUT_SHARE == 0


def sort_letters(word: str) -> str:
    """What the child of `word` should answer."""
    return "".join(sorted(word))


def last_line(results: Sequence[str]) -> str:
    """What the parent should write after the merged `results`, without the newline before it."""
    return "= " + "".join(result[:1] for result in results)


def make_prompt(words: Sequence[str], mode: Mode) -> str:
    """The prompt that asks for `words`."""
    items = " ".join(f"{number} {word}" for number, word in enumerate(words, 1))
    return f"{_VERBS[mode]} {items}\n"


def parse_prompt(prompt: str) -> tuple[Mode, list[str]]:
    """The inverse of `make_prompt`; raises `ValueError` for any other text."""
    verb, *items = prompt.split()
    words = items[1::2]
    for mode in MODES:
        if verb == _VERBS[mode] and prompt == make_prompt(words, mode):
            return mode, words
    raise ValueError(f"not a prompt of this task: {prompt!r}")


def held_out_prompts(count: int, seed: int, mode: Mode) -> list[str]:
    """`count` prompts of held-out words only, the same ones for the same arguments."""
    rng = random.Random(f"held-out {mode} {seed}")
    return [make_prompt(random_words(rng, held_out=True), mode) for _ in range(count)]


def expected_output(prompt: str) -> str:
    """The parent's right output, merged tokens and hook tokens included, without the `<eos>`."""
    mode, words = parse_prompt(prompt)
    tree = make_tree(words, [sort_letters(word) for word in words], mode)
    return "".join(piece.text for piece in tree.parent[1:]).removesuffix(EOS)


def is_correct(prompt: str, output: str) -> bool:
    """Whether the parent's whole output is right; `output` shows its hook tokens."""
    return output.removesuffix(EOS) == expected_output(prompt)


def has_correct_last_line(prompt: str, output: str) -> bool:
    """Whether the last line is right, whatever comes before it."""
    expected = expected_output(prompt).rpartition("\n")[2]
    return output.removesuffix(EOS).rpartition("\n")[2] == expected


def training_trees(seed: int) -> Iterator[Tree]:
    """Endless trees of training words, both modes, all item counts.

    In half of the trees the merged results are not the sorted words but unrelated ones, and the
    parent's last line follows them: a parent that ignores what is merged cannot learn it.
    """
    rng = random.Random(f"training {seed}")
    while True:
        words = random_words(rng, held_out=False)
        results = [sort_letters(word) for word in words]
        if rng.random() < _FOREIGN_RESULTS_SHARE:
            results = [_random_word(rng, held_out=False) for _ in words]
        yield make_tree(words, results, rng.choice(MODES))


def make_tree(words: Sequence[str], results: Sequence[str], mode: Mode) -> Tree:
    """The run for `words` whose join merges `results`; the children answer rightly in any case."""
    build = _sync_parent if mode == "sync" else _promise_parent
    parent = [Piece(make_prompt(words, mode), sampled=False), *build(results)]
    parent.append(Piece(f"\n{last_line(results)}{EOS}", sampled=True))
    forks = [index for index, piece in enumerate(parent, 1) if piece.text.endswith(PROMISE)]
    children = tuple(_branch(word, fork) for word, fork in zip(words, forks, strict=True))
    return Tree(tuple(parent), children)


def _branch(word: str, fork: int) -> Branch:
    answer = Piece(sort_letters(word) + EOS, sampled=True)
    return Branch((Piece(CHILD, sampled=False), answer), fork)


def _sync_parent(results: Sequence[str]) -> list[Piece]:
    calls = [Piece(f"{number}{PROMISE}", sampled=True) for number in range(1, len(results) + 1)]
    merged = Piece(MERGE_SEPARATOR.join(results), sampled=False)
    return [*calls, Piece(SYNC, sampled=True), merged]


def _promise_parent(results: Sequence[str]) -> list[Piece]:
    pieces = []
    for number, result in enumerate(results, 1):
        newline = "\n" if number > 1 else ""
        pieces.append(Piece(f"{newline}{number}{PROMISE}", sampled=True))
        pieces.append(Piece(result, sampled=False))
    return pieces


def random_words(rng: random.Random, *, held_out: bool) -> list[str]:
    """Words of one prompt, all of one side of the split."""
    return [_random_word(rng, held_out=held_out) for _ in range(rng.randint(MIN_ITEMS, MAX_ITEMS))]


def _random_word(rng: random.Random, *, held_out: bool) -> str:
    """A word of one side of the split, at times from a small pool of letters so that some repeat."""
    while True:
        pool = rng.sample(ascii_lowercase, rng.randint(3, len(ascii_lowercase)))
        word = "".join(rng.choices(pool, k=rng.randint(MIN_LETTERS, MAX_LETTERS)))
        if is_held_out(word) == held_out:
            return word
