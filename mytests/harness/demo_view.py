# SPDX-License-Identifier: Apache-2.0
"""What the demo reads and shows: words and options, and the sequences of a `SurgicalEngine` as a table."""

import ast
import contextlib
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from mytests.harness.surgical import CHILD, EOS, PROMISE, SYNC, SurgicalEngine
from sequence_hooks.results import Segment
from vllm.core.hooked_sequence import branch_of
from vllm.core.sequence_data import ReleasedTokens
from vllm.sequence import SequenceGroup

TOKENS = {"!": PROMISE, ".": SYNC, "$": EOS}


class CommandError(Exception):
    """A command cannot be carried out; the message names the value and the way out."""


def words_of(command: str, line: str) -> list[str]:
    """The words of a line; a quoted string is one word."""
    try:
        return shlex.split(line)
    except ValueError:
        raise CommandError(f"{command}: {line!r} has a quote that is not closed; close it") from None


def assignments(command: str, words: Iterable[str]) -> dict[str, str]:
    parts = [word.partition("=") for word in words]
    for name, equals, value in parts:
        if not name or not equals:
            raise CommandError(f"{command}: {name + equals + value!r} is no NAME=VALUE; write it without spaces")
    return {name: value for name, _, value in parts}


def options(command: str, words: Iterable[str]) -> dict[str, Any]:
    """Values by option: numbers and switches are written as in Python, and all else is a text."""
    return {name: _value(text) for name, text in assignments(command, words).items()}


def _value(text: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text


QUEUES = ("waiting", "running", "swapped", "blocked", "forked")
HOOK_MARKS = {token_id: mark for mark, token_id in TOKENS.items()} | {CHILD: ">", ord("\n"): "⏎"}

Groups = Mapping[str, SequenceGroup]
Seen = dict[str, tuple[str, list[int]]]
"""Status and block table by sequence."""


def seen_in(engine: SurgicalEngine, groups: Groups) -> Seen:
    """Status and block table of each sequence; a finished one has no blocks."""
    held = engine.scheduler.block_manager.block_tables
    seen = {}
    for name, group in groups.items():
        blocks = engine.block_table(group) if group.first_seq.seq_id in held else []
        seen[name] = group.first_seq.status.name, blocks
    return seen


def copies(before: Seen, seen: Seen) -> Iterator[str]:
    """A message for each shared block that a sequence replaced by a copy, to write into it."""
    held = _held(seen)
    for name, (_, blocks) in seen.items():
        _, old_blocks = before.get(name, ("", []))
        for old, new in zip(old_blocks, blocks, strict=False):
            if old != new and old in held:
                yield f"{name} writes into a copy of block {old}, which is shared: block {new}"


def table_of(engine: SurgicalEngine, groups: Groups, before: Seen, seen: Seen) -> Table:
    """A row for each sequence; its status is coloured if it has changed since ``before``."""
    held = _held(seen)
    table = Table("sequence", "status", "queue", "context", "computed", "blocks")
    for name, (status, blocks) in seen.items():
        old_status, _ = before.get(name, ("", []))
        table.add_row(
            name,
            Text(status, "" if status == old_status else "bold yellow"),
            next((queue for queue in QUEUES if groups[name] in getattr(engine.scheduler, queue)), ""),
            _context(groups[name]),
            f"{groups[name].first_seq.get_num_computed_tokens()}/{groups[name].first_seq.get_len()}",
            " ".join(f"[magenta]{block}*[/]" if held.count(block) > 1 else str(block) for block in blocks),
        )
    return table


def readable(token_ids: Iterable[int], style: str = "") -> Text:
    """Tokens as text, with marks for special tokens."""
    return Text.assemble(*((HOOK_MARKS[i], "bold yellow") if i in HOOK_MARKS else (chr(i), style) for i in token_ids))


def one_line(error: Exception) -> str:
    """The error's message on one line; of a pydantic error, only the reason."""
    reasons = error.errors() if hasattr(error, "errors") else []
    told = " ".join((reasons[0]["msg"].removeprefix("Value error, ") if reasons else str(error)).split())
    if isinstance(error, (CommandError, ValueError)):
        return told
    return f"the engine failed, {type(error).__name__}: {told}; start over with new"


def _held(seen: Seen) -> list[int]:
    return [block for _, blocks in seen.values() for block in blocks]


def _context(group: SequenceGroup) -> Text:
    """Prompt, bar, output; merged tokens are in brackets."""
    seq, branch = group.first_seq, branch_of(group)
    output = seq.get_output_token_ids()
    prompt = seq.prompt_token_ids
    # A joined child no longer has its prompt.
    text = Text("…", "dim") if isinstance(prompt, ReleasedTokens) else readable(prompt, "dim")
    text.append("|", "dim")
    for segment in branch.segments if branch else [Segment(0, len(output), "sampled")]:
        shown = readable(output[segment.start : segment.end])
        text += shown if segment.origin == "sampled" else Text.assemble(("[", "green"), shown, ("]", "green"))
    return text
