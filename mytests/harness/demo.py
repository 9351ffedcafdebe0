# SPDX-License-Identifier: Apache-2.0
"""Interactive surgical testing: build a group, feed it tokens, watch statuses, queues and block tables.

There is no model: you say what each sequence samples, one character per token. "!" is the promise, which
spawns a child; "." the sync token, which waits for the children; "$" ends a sequence. `tour` walks through
a spawn and a merge, `help` lists the commands, `quit` ends. Commands can also come from standard input.
"""

import cmd
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

import mytests.harness.environment  # noqa: F401
from mytests.harness.characters import token_of
from mytests.harness.demo_view import (
    TOKENS,
    CommandError,
    Seen,
    assignments,
    copies,
    one_line,
    options,
    readable,
    seen_in,
    table_of,
    words_of,
)
from mytests.harness.stepped import chooser
from mytests.harness.surgical import SYNC_HOOKS, Sampling, SurgicalEngine
from mytests.harness.v0.groups import sampling_of
from vllm.core.hooked_sequence import branch_of
from vllm.sequence import SequenceGroup

MAX_STEPS = 200
TOUR = [
    ("new block_size=4 num_blocks=16", "A scheduler, and a block manager with 16 free blocks of 4 tokens."),
    ('add r "a prompt:"', "A group by hand. It waits, and has no blocks."),
    ("step r=a", "The prompt is prefilled into three blocks, the last one not full, and r samples a token."),
    ("step r=!", "A promise spawns a child with all of the context. It shares the blocks: no memory, no prefill."),
    ("step r=b r_child_0=B", "Both write: the last block is copied for the first to do so. The full ones stay shared."),
    ("step r=. r_child_0=C", "A sync: r is BLOCKED, and keeps its blocks."),
    ("step r_child_0=D", "The child runs alone."),
    ("step r_child_0=$", "The child ends, and gives its blocks back. Its parent is joined at the next step."),
    ("step r=z", "BCD is merged into r, which resumes: it prefills BCD and its last token, and no context."),
    ("step r=$", "The end: every block is free."),
]


class Demo(cmd.Cmd):
    """Commands on a `SurgicalEngine`."""

    prompt = "> "

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._start({})

    def do_new(self, line: str) -> None:
        """new [block_size=4 num_blocks=16 block_on=sync prefix_caching=True ...]: start over, with these options"""
        self._start(options("new", words_of("new", line)))

    def do_add(self, line: str) -> None:
        """add ID ["a prompt"] [max_tokens=9 min_tokens=2 seed=5 stop=ab]: a group in the waiting queue"""
        words = words_of("add", line)
        if not words or "=" in words[0]:
            raise CommandError(f'add: {line!r} begins with no id; write add r "a prompt"')
        request_id, prompt, rest = words[0], "prompt", words[1:]
        if request_id in self._groups():
            raise CommandError(f"add: the id {request_id!r} is taken; choose another, or start over with new")
        if rest and "=" not in rest[0]:
            prompt, *rest = rest
        if not prompt:
            raise CommandError("add: the prompt is ''; give it a character at least")
        self._requests[request_id] = self.engine.add(request_id, prompt, **options("add", rest))

    def do_step(self, line: str) -> None:
        """step [ID=TOKEN ...]: one engine step; a sequence that is not named samples x"""
        texts = assignments("step", words_of("step", line))
        for name, text in texts.items():
            self._require("step", name, self._groups())
            if len(text) != 1:
                raise CommandError(f"step: {name} has {text!r}; give one character, as in {name}=a, or use run")
        tokens = {name: TOKENS.get(text, ord(text)) for name, text in texts.items()}
        sampled = self._step(chooser(tokens))
        for name in texts:
            if name not in sampled:
                self._say(f"{name} did not sample, and is {self._seen()[name][0]}: its token is not used")

    def do_run(self, line: str) -> None:
        """run [ID=TEXT ...]: step to the end; each sequence samples its text from now on, and then $"""
        texts = assignments("run", words_of("run", line))
        done = {name: "x" * sampling_of(group).num_sampled for name, group in self._groups().items()}
        script = {name: done.get(name, "") + texts.get(name, "").split("$")[0] for name in done | texts}
        for _ in range(MAX_STEPS):
            if self.engine.is_idle() or self.engine.is_waiting_for_callers():
                break
            self._step(lambda each: token_of(script.get(each.request_id, ""), each.num_sampled))
        for name in texts:
            if name not in self._groups():
                self._say(f"there never was a sequence {name!r}: its text is not used")

    def do_abort(self, line: str) -> None:
        """abort ID: abort a sequence and all its descendants"""
        self._require("abort", line, self.engine.statuses())
        self.engine.abort(line)

    def do_resume(self, line: str) -> None:
        """resume ID ["a text"]: what a caller does with sync_resume=manual; the text is appended at the join"""
        request_id, *text = words_of("resume", line) or [""]
        self.engine.resume(request_id, " ".join(text))

    def do_show(self, line: str) -> None:
        """show: every sequence, its queue and its blocks; a starred block is shared"""

    def do_tour(self, line: str) -> None:
        """tour: a walk through spawn, copy on write, BLOCKED, merge and resume; it starts over"""
        for number, (command, remark) in enumerate(TOUR, 1):
            self.console.print(Text.assemble((f"\n{number}. {remark}\n", "bold"), (f"> {command}", "cyan")))
            self.onecmd(command)
        self.engine.assert_empty()

    def do_quit(self, line: str) -> bool:
        """quit: end the demo"""
        return True

    do_EOF = do_quit

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        raise CommandError(f"there is no command {line.split()[0]!r}; help lists them")

    def onecmd(self, line: str) -> bool:
        """Carry out a command and show what it changed; an error is reported in one line."""
        before = self._seen()
        try:
            if super().onecmd(line):
                return True
        except Exception as error:
            self._say(one_line(error), "red")
        else:
            if line.strip() and self.parseline(line)[0] not in ("help", "tour"):
                self._show(before)
        return False

    def _start(self, chosen: Mapping[str, Any]) -> None:
        hooks = {name: value for name, value in chosen.items() if hasattr(SYNC_HOOKS, name)}
        sizes = {"num_blocks": 16} | {name: value for name, value in chosen.items() if name not in hooks}
        self.engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, **hooks), **sizes)
        self._requests: dict[str, SequenceGroup] = {}

    def _step(self, choose: Callable[[Sampling], int]) -> dict[str, str]:
        """Step and print what was scheduled; returns what each sequence sampled."""
        sampled: dict[str, str] = {}

        def record(sampling: Sampling) -> int:
            token_id = choose(sampling)
            sampled[sampling.request_id] = f", samples {readable([token_id]).plain}"
            return token_id

        told = []
        for entry in self.engine.step(record):
            verb = "prefills" if entry.is_prefill else "decodes"
            told.append(f"{entry.request_id} {verb} {entry.num_tokens}{sampled.get(entry.request_id, '')}")
        self._say(f"scheduled: {'; '.join(told) or 'nothing, there is nothing that could run'}")
        return sampled

    def _require(self, command: str, name: str, names: Iterable[str]) -> None:
        if name not in names:
            raise CommandError(f"{command}: there is no sequence {name!r}; there are {', '.join(names) or 'none'}")

    def _groups(self) -> dict[str, SequenceGroup]:
        """Every sequence so far, each before its children."""
        groups, todo = {}, list(self._requests.values())
        while todo:
            group = todo.pop(0)
            groups[group.request_id] = group
            branch = branch_of(group)
            todo[:0] = [child.sequence.group for child in branch.children] if branch else []
        return groups

    def _seen(self) -> Seen:
        return seen_in(self.engine, self._groups())

    def _show(self, before: Seen) -> None:
        """Print the copied blocks, the table of sequences, and the number of free blocks."""
        seen = self._seen()
        for told in copies(before, seen):
            self._say(told)
        if seen:
            self.console.print(table_of(self.engine, self._groups(), before, seen))
        self._say(f"free blocks: {self.engine.num_free_blocks()} of {self.engine.num_blocks}")
        for request_id in self.engine.awaiting():
            self._say(f"{request_id} waits for its caller: resume {request_id}")

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style))


def main() -> None:
    """Show a prompt on a terminal; otherwise read commands from standard input, one per line."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    demo = Demo(console)
    if sys.stdin.isatty():
        with contextlib.suppress(KeyboardInterrupt):
            demo.cmdloop(__doc__)
        return
    for line in sys.stdin:
        console.print(Text(f"> {line.rstrip()}", "cyan"))
        if demo.onecmd(line.strip()):
            return


if __name__ == "__main__":
    main()
