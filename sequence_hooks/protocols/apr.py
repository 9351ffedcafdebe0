# SPDX-License-Identifier: Apache-2.0
"""APR, Adaptive Parallel Reasoning (arXiv 2504.15466): a search on numbers calls sub-searches, each from its own node::

    Sampled:      <Calling Sub Searches>
                  <Start Sub Search 0 at level 1> Moving to Node #0,0
                  <Start Sub Search 1 at level 1> Moving to Node #0,1
                  <End Calling Sub Searches>
    A child:      Moving to Node #0,0
                  Current State: 24:[4, 6], Operations: ['9-3=6']
    After them:   <Sub Searches>
                  <Goal Reached in Sub Search 0 at level 1 at Node #0,0>
                  ...the path to the goal...
                  <No Solution in Sub Search 1 at level 1 at Node #0,1>
                  <End Sub Searches>

Read in Parallel-Reasoning/APR, commit 5577928, ``src/eval/eval_apr.py`` and ``parallel_infernce_utils.py``. All markers
are text of several tokens. A child has none of its parent's context; what it starts from is looked up in the parent's
text. The path to the goal is what a child says after its last but one "Goal Reached". Sub-searches call no others.

Here it differs: there the block of calls is taken out of the parent's context before the results are put in. Here it
stays, and the results follow it: a context that grows only at its end keeps its KV.

Not confirmed: whether the published tokenizer puts one or two BOS tokens before a prompt; here it is one.
"""

import ast
import re
from collections.abc import Sequence

from sequence_hooks.config.tokens import ids_of
from sequence_hooks.handlers import Actions, Merged, Piece, Spawn, TokenEvent
from sequence_hooks.handlers.triggers import Decoder
from sequence_hooks.results import ChildOutput

SOURCES = {
    "trigger": "Parallel-Reasoning/APR, commit 5577928, src/eval/eval_apr.py",
    "context": "Parallel-Reasoning/APR, commit 5577928, src/eval/parallel_infernce_utils.py, get_subsearch_info",
    "prefix": "Parallel-Reasoning/APR, commit 5577928, src/eval/parallel_infernce_utils.py and eval_apr.py",
    "positions": "Parallel-Reasoning/APR, commit 5577928, src/eval/eval_apr.py",
    "end": "Parallel-Reasoning/APR, commit 5577928, src/eval/eval_apr.py",
    "merge": (
        "Parallel-Reasoning/APR, commit 5577928, src/eval/parallel_infernce_utils.py, get_main_trace_after_sub_search"
    ),
    "mask": "Parallel-Reasoning/APR, commit 5577928, src/eval/eval_apr.py",
    "prompt": "Parallel-Reasoning/APR, commit 5577928, src/eval/eval_apr.py, get_prefix, and README.md",
    "limits": "Parallel-Reasoning/APR, commit 5577928, src/eval/eval_apr.py",
    "checkpoints": "Parallel-Reasoning/APR, commit 5577928, README.md",
}
"""Where each point of the notation stands; docs/protocols.md says what it is."""

_CALLS = "<Calling Sub Searches>"
_CALL = re.compile(r"<Start Sub Search.*Moving to Node #(\S+)")
_STATE = re.compile(r"Moving to Node #(\S+)\nCurrent State: (\S+?:\[[^\]]*\]), Operations: (\[.*\])")
_MADE = re.compile(r"Generated Node #(\S+): (\S+?:\[[^\]]*\]) Operation: (\S+)")
_GOAL = "Goal Reached"


class SubSearches:
    """Spawns a child for each call of a sub-search whose node the text has."""

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        bos = getattr(tokenizer, "bos_token_id", None)
        self._begin = () if bos is None else (bos,)

    def on_token(self, event: TokenEvent) -> Actions:
        context = [*event.prompt_token_ids, *event.output_token_ids, event.token_id]
        text = self._tokenizer.decode(context, skip_special_tokens=True)
        calls = _CALL.findall(text.rpartition(_CALLS)[2])
        states = states_in(text)
        prompts = [f"Moving to Node #{node}\nCurrent State: {states[node]}" for node in calls if node in states]
        spawn = (Spawn((*self._begin, *ids_of(prompt, self._tokenizer)), context="none") for prompt in prompts)
        children = tuple(spawn)
        return Actions(children, block=bool(children), is_malformed=len(children) != max(1, len(calls)))

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """What each sub-search has found, in the order of the calls."""
        merged: list[Piece] = ["\n<Sub Searches>\n"]
        for index, child in enumerate(children):
            first = self._tokenizer.decode(list(child.prefix_token_ids), skip_special_tokens=True).partition("\n")[0]
            where = f"in Sub Search {index} at level 1 at Node #{first.partition('#')[2]}"
            path = path_to_goal(child.text)
            merged.append(f"<No Solution {where}>\n" if path is None else f"<{_GOAL} {where}>\n{path}\n")
        return [*merged, "<End Sub Searches>\n"]


def states_in(text: str) -> dict[str, str]:
    """For each node in a search's text, what a prompt says of it after ``Current State:``."""
    operations = {node: said for node, _, said in _STATE.findall(text)}
    states = {node: f"{state}, Operations: {said}" for node, state, said in _STATE.findall(text)}
    for node, state, operation in _MADE.findall(text):
        above = operations.get(node.rpartition(",")[0], "[]")
        try:
            operations[node] = str([*ast.literal_eval(above), operation])
        except (ValueError, SyntaxError):
            continue
        states.setdefault(node, f"{state}, Operations: {operations[node]}")
    return states


def path_to_goal(text: str) -> str | None:
    """What a sub-search says of its way to the goal, which it repeats at its end; None if it has found none."""
    found = text.rfind(_GOAL, 0, max(0, text.rfind(_GOAL)))
    return None if found < 0 else text[found + len(_GOAL) :].strip()


def handler(tokenizer: Decoder) -> SubSearches:
    """Spawns a child for each sub-search."""
    return SubSearches(tokenizer)
