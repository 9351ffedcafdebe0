# SPDX-License-Identifier: Apache-2.0
"""Surgical testing by hand: build a group, feed it tokens, watch statuses, queues and block tables.

No model is there: you say what each sequence samples, one character a token. "!" is the promise, which
spawns a child; "." the sync token, which waits for the children; "$" ends a sequence. `tour` walks through
a spawn and a merge, `help` lists the commands, `quit` ends. Commands are read from standard input, too.
"""

import cmd
import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import mytests.environment  # noqa: F401
from mytests.surgical import CHILD, EOS, PROMISE, SYNC, SYNC_HOOKS, SurgicalEngine, num_sampled, plan
from vllm.config import SpecialKwargs
from vllm.hooks.branch import branch_of
from vllm.hooks.results import Segment
from vllm.sequence import SequenceGroup

TOKENS = {"!": PROMISE, ".": SYNC, "$": EOS}
HOOK_MARKS = {token_id: mark for mark, token_id in TOKENS.items()} | {CHILD: ">", ord("\n"): "⏎"}
QUEUES = ("waiting", "running", "swapped", "blocked", "spawned")
SWITCH = {"on": True, "off": False}
MAX_STEPS = 200
ENGINE_OPTIONS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(SurgicalEngine) if type(field.default) in (int, bool)
} | {"num_blocks": 16}
HOOK_OPTIONS: dict[str, Any] = {
    field.name: field.default for field in dataclasses.fields(SpecialKwargs) if type(field.default) in (int, str)
}
REQUEST_OPTIONS: dict[str, Any] = {"max_tokens": 100, "min_tokens": 0, "seed": 0, "stop": ""}
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


class CommandError(Exception):
    """A command cannot be carried out; the message names the value and the way out."""


class Demo(cmd.Cmd):
    """Commands on a `SurgicalEngine`."""

    prompt = "> "

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._start({})

    def do_new(self, line: str) -> None:
        """new [block_size=4 num_blocks=16 block_on=sync prefix_caching=on ...]: start over, with these options"""
        self._start(_options("new", _words("new", line), ENGINE_OPTIONS | HOOK_OPTIONS))

    def do_add(self, line: str) -> None:
        """add ID ["a prompt"] [max_tokens=9 min_tokens=2 seed=5 stop=ab]: a group in the waiting queue"""
        words = _words("add", line)
        if not words or "=" in words[0]:
            raise CommandError(f'add: {line!r} begins with no id; write add r "a prompt"')
        request_id, prompt, rest = words[0], "prompt", words[1:]
        if request_id in self._groups():
            raise CommandError(f"add: the id {request_id!r} is taken; choose another, or start over with new")
        if rest and "=" not in rest[0]:
            prompt, *rest = rest
        if not prompt:
            raise CommandError("add: the prompt is ''; give it a character at least")
        self._requests[request_id] = self.engine.add(request_id, prompt, **_options("add", rest, REQUEST_OPTIONS))

    def do_step(self, line: str) -> None:
        """step [ID=TOKEN ...]: one engine step; a sequence that is not named samples x"""
        texts = _assignments("step", _words("step", line))
        for name, text in texts.items():
            self._require("step", name, self._groups())
            if len(text) != 1:
                raise CommandError(f"step: {name} has {text!r}; give one character, as in {name}=a, or use run")
        tokens = {name: TOKENS.get(text, ord(text)) for name, text in texts.items()}
        sampled = self._step(lambda group: tokens.get(group.request_id, ord("x")))
        for name in texts:
            if name not in sampled:
                self._say(f"{name} did not sample, and is {self._seen()[name][0]}: its token is not used")

    def do_run(self, line: str) -> None:
        """run [ID=TEXT ...]: step to the end; each sequence samples its text from now on, and then $"""
        texts = _assignments("run", _words("run", line))
        done = {name: "x" * num_sampled(group) for name, group in self._groups().items()}
        script = {name: done.get(name, "") + texts.get(name, "").split("$")[0] for name in done | texts}
        scheduler = self.engine.scheduler
        for _ in range(MAX_STEPS):
            if not scheduler.has_unfinished_seqs() or scheduler.is_waiting_for_callers():
                break
            self._step(lambda group: plan(**{group.request_id: script.get(group.request_id, "")})(group))
        for name in texts:
            if name not in self._groups():
                self._say(f"there never was a sequence {name!r}: its text is not used")

    def do_abort(self, line: str) -> None:
        """abort ID: abort a sequence and all that descends from it"""
        self._require("abort", line, self.engine.statuses())
        self.engine.scheduler.abort_seq_group(line)

    def do_resume(self, line: str) -> None:
        """resume ID ["a text"]: what a caller does with sync_resume=manual; the text is appended at the join"""
        request_id, *text = _words("resume", line) or [""]
        self.engine.processor.resume(request_id, " ".join(text))

    def do_show(self, line: str) -> None:
        """show: every sequence, its queue and its blocks; a starred block is shared"""

    def do_tour(self, line: str) -> None:
        """tour: a walk through spawn, copy on write, BLOCKED, merge and resume; it starts over"""
        for number, (command, remark) in enumerate(TOUR, 1):
            self.console.print(Text.assemble((f"\n{number}. {remark}\n", "bold"), (f"> {command}", "cyan")))
            self.onecmd(command)
        self.engine.assert_empty()

    def do_help(self, arg: str) -> None:
        """help: this list"""
        for name in ("new", "add", "step", "run", "abort", "resume", "show", "tour", "help", "quit"):
            usage, _, what = (getattr(self, f"do_{name}").__doc__ or "").partition(": ")
            self.console.print(Text.assemble((usage, "cyan"), f"\n    {what}"))
        self._say(f"Options of new: {', '.join([*ENGINE_OPTIONS, *HOOK_OPTIONS])}.")

    def do_quit(self, line: str) -> bool:
        """quit: end the demo"""
        return True

    do_EOF = do_quit

    def emptyline(self) -> bool:
        """Nothing, where `cmd.Cmd` would repeat the last command."""
        return False

    def default(self, line: str) -> None:
        """Refuse what is no command."""
        raise CommandError(f"there is no command {line.split()[0]!r}; help lists them")

    def onecmd(self, line: str) -> bool:
        """Carry out a command and show what it changed; what goes wrong is told in one line."""
        before = self._seen()
        try:
            if super().onecmd(line):
                return True
        except Exception as error:
            self._say(_one_line(error), "red")
        else:
            if line.strip() and self.parseline(line)[0] not in ("help", "tour"):
                self._show(before)
        return False

    def _start(self, options: Mapping[str, Any]) -> None:
        hooks = {name: options[name] for name in HOOK_OPTIONS if name in options}
        sizes = {name: options.get(name, default) for name, default in ENGINE_OPTIONS.items()}
        self.engine = SurgicalEngine(dataclasses.replace(SYNC_HOOKS, **hooks), **sizes)
        self._requests: dict[str, SequenceGroup] = {}

    def _step(self, choose: Callable[[SequenceGroup], int]) -> dict[str, str]:
        """Step, and tell what was scheduled; what each sequence sampled."""
        sampled: dict[str, str] = {}

        def record(group: SequenceGroup) -> int:
            token_id = choose(group)
            sampled[group.request_id] = f", samples {_readable([token_id]).plain}"
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
        """Every sequence there has been, each before its children."""
        groups, todo = {}, list(self._requests.values())
        while todo:
            group = todo.pop(0)
            groups[group.request_id] = group
            branch = branch_of(group)
            todo[:0] = [child.seq_group for child in branch.children] if branch else []
        return groups

    def _seen(self) -> dict[str, tuple[str, list[int]]]:
        """Status and block table of each sequence; a finished one has no blocks."""
        held = self.engine.scheduler.block_manager.block_tables
        seen = {}
        for name, group in self._groups().items():
            blocks = self.engine.block_table(group) if group.first_seq.seq_id in held else []
            seen[name] = group.first_seq.status.name, blocks
        return seen

    def _show(self, before: Mapping[str, tuple[str, list[int]]]) -> None:
        """The table of sequences, statuses in colour where they are not as ``before``; and free blocks."""
        groups, seen, scheduler = self._groups(), self._seen(), self.engine.scheduler
        held = [block for _, blocks in seen.values() for block in blocks]
        table = Table("sequence", "status", "queue", "context", "computed", "blocks")
        for name, (status, blocks) in seen.items():
            old_status, old_blocks = before.get(name, ("", []))
            for old, new in zip(old_blocks, blocks, strict=False):
                if old != new and old in held:
                    self._say(f"{name} writes into a copy of block {old}, which is shared: block {new}")
            table.add_row(
                name,
                Text(status, "" if status == old_status else "bold yellow"),
                next((queue for queue in QUEUES if groups[name] in getattr(scheduler, queue)), ""),
                _context(groups[name]),
                f"{groups[name].first_seq.get_num_computed_tokens()}/{groups[name].first_seq.get_len()}",
                " ".join(f"[magenta]{block}*[/]" if held.count(block) > 1 else str(block) for block in blocks),
            )
        if seen:
            self.console.print(table)
        self._say(f"free blocks: {self.engine.num_free_blocks()} of {self.engine.num_blocks}")
        for branch in self.engine.processor.awaiting_resume():
            self._say(f"{branch.seq_group.request_id} waits for its caller: resume {branch.seq_group.request_id}")

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style))


def _words(command: str, line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        raise CommandError(f"{command}: {line!r} has a quote that is not closed; close it") from None


def _assignments(command: str, words: Iterable[str]) -> dict[str, str]:
    parts = [word.partition("=") for word in words]
    for name, equals, value in parts:
        if not name or not equals:
            raise CommandError(f"{command}: {name + equals + value!r} is no NAME=VALUE; write it without spaces")
    return {name: value for name, _, value in parts}


def _options(command: str, words: Iterable[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Values by option, each of its default's type."""
    options = {}
    for name, text in _assignments(command, words).items():
        if name not in defaults:
            raise CommandError(f"{command}: there is no option {name!r}; there are {', '.join(defaults)}")
        kind = type(defaults[name])
        lowest = int(bool(defaults[name]) and name in ENGINE_OPTIONS)
        wanted = "on or off" if kind is bool else f"a whole number from {lowest}"
        if kind is not str and not (text in SWITCH if kind is bool else text.isdecimal() and int(text) >= lowest):
            raise CommandError(f"{command}: {name} is {text!r}; give {wanted}")
        options[name] = SWITCH[text] if kind is bool else kind(text)
    return options


def _readable(token_ids: Iterable[int], style: str = "") -> Text:
    return Text.assemble(*((HOOK_MARKS[i], "bold yellow") if i in HOOK_MARKS else (chr(i), style) for i in token_ids))


def _context(group: SequenceGroup) -> Text:
    """Prompt, bar, output; what was merged stands in brackets."""
    seq, branch = group.first_seq, branch_of(group)
    output = seq.get_output_token_ids()
    text = _readable(seq.prompt_token_ids, "dim").append("|", "dim")
    for segment in branch.segments() if branch else [Segment(0, len(output), "sampled")]:
        shown = _readable(output[segment.start : segment.end])
        text += shown if segment.origin == "sampled" else Text.assemble(("[", "green"), shown, ("]", "green"))
    return text


def _one_line(error: Exception) -> str:
    """What went wrong; of pydantic's report only the reason."""
    reasons = error.errors() if hasattr(error, "errors") else []
    told = " ".join((reasons[0]["msg"].removeprefix("Value error, ") if reasons else str(error)).split())
    if isinstance(error, (CommandError, ValueError)):
        return told
    return f"the engine failed, {type(error).__name__}: {told}; start over with new"


def main() -> None:
    """A prompt on a terminal; otherwise the commands of standard input, one a line."""
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
