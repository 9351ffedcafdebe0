# SPDX-License-Identifier: Apache-2.0
"""APR, Adaptive Parallel Reasoning (arXiv 2504.15466): a search on numbers calls sub-searches, each from its own node::

    Sampled:      <Calling Sub Searches>
                  <Start Sub Search 0 at level 1> Moving to Node #0,0
                  <Start Sub Search 1 at level 1> Moving to Node #0,1
                  <End Calling Sub Searches>
    A child:      Moving to Node #0,0
                  Current State: 24:[4, 6], Operations: ['9-3=6']
    In place of   <Sub Searches>
    the calls:    <Goal Reached in Sub Search 0 at level 1 at Node #0,0>
                  ...the path to the goal...
                  <No Solution in Sub Search 1 at level 1 at Node #0,1>
                  <End Sub Searches>

All markers are text of several tokens. A child has none of its parent's context; what it starts from is looked up in
the parent's text. The path to the goal is what a child says after its last but one "Goal Reached". Sub-searches call no
others.

Read in Parallel-Reasoning/APR, commit 5577928:

- ``src/eval/parallel_infernce_utils.py``, ``get_main_trace_after_sub_search``: the results replace the calls. So they
  do in the training data (``src/data/search.py``, ``_parallel_search``): a trace that calls ends with ``<End Calling
  Sub Searches>``, and another one goes on without the calls.
- ``src/eval/eval_apr.py``, ``decode_trace``: generation stops at ``<Sub Searches>``, which is rewritten to ``<Calling
  Sub Searches>``, in a sub-search as well. Only the client is to write it.
- The same file, ``generate``, and ``supervised-jax/llama3_train/llama_train_script.py``, ``process_pretrain_example``:
  each sequence begins with the text of BOS, to which a Llama tokenizer adds another BOS. A request's own prompt needs
  both, too.

Here it differs: there a search with an unknown node ends without an answer; here that sub-search is left out. There the
calls end with the model's EOS; here its parent is BLOCKED at their last token. There the whole text is tokenized again
after each step; here what is sampled stays as it is.
"""

import ast
import re
from collections.abc import Sequence

from sequence_hooks.config.notations import Notation
from sequence_hooks.handlers import Actions, Merged, Piece, Spawn, TokenEvent
from sequence_hooks.protocols.guard import Guard
from sequence_hooks.protocols.tags import start_of
from sequence_hooks.results import ChildOutput
from sequence_hooks.text.encoding import Tokenizer, ids_of, prefix_ids_of

NOTATION = Notation(
    fields={
        "handlers": {
            "<End Calling Sub Searches>": "sequence_hooks.protocols.apr.handler",
            "<Sub Searches>": "sequence_hooks.protocols.apr.guard",
        },
        "trigger_by": "text",
    }
)
"""What it configures."""

_CALLS = "<Calling Sub Searches>"
_RESULTS = "<Sub Searches>"
_CALL = re.compile(r"<Start Sub Search.*Moving to Node #(\S+)")
_STATE = re.compile(r"Moving to Node #(\S+)\nCurrent State: (\S+?:\[[^\]]*\]), Operations: (\[.*\])")
_MADE = re.compile(r"Generated Node #(\S+): (\S+?:\[[^\]]*\]) Operation: (\S+)")
_GOAL = "Goal Reached"


class SubSearches:
    """Spawns a child for each call of a sub-search whose node the text has, and replaces the calls by results."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        bos = getattr(tokenizer, "bos_token_id", None)
        self._begin = () if bos is None else (bos, bos)

    def on_token(self, event: TokenEvent) -> Actions:
        context = [*event.prompt_token_ids, *event.output_token_ids, event.token_id]
        text = self._tokenizer.decode(context, skip_special_tokens=True)
        calls = _CALL.findall(text.rpartition(_CALLS)[2])
        states = states_in(text)
        prompts = [f"Moving to Node #{node}\nCurrent State: {states[node]}" for node in calls if node in states]
        spawn = (Spawn((*self._begin, *ids_of(prompt, self._tokenizer)), context="none") for prompt in prompts)
        children = tuple(spawn)
        start = start_of(_CALLS, [*event.output_token_ids, event.token_id], self._tokenizer)
        if start is None or not children:
            return Actions(is_malformed=True)
        begin = prefix_ids_of(f"{start.text_before}{_RESULTS}\n", self._tokenizer)
        is_malformed = len(children) < len(calls)
        return Actions(children, True, is_malformed=is_malformed, replace_from=start.index, insert_token_ids=begin)

    def join(self, children: Sequence[ChildOutput]) -> Merged:
        """What each sub-search has found, in the order of the calls."""
        merged: list[Piece] = []
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


handler = SubSearches


def guard(tokenizer: Tokenizer) -> Guard:
    """Has a search call sub-searches where it would invent their results."""
    return Guard(tokenizer, _RESULTS, _CALLS)
