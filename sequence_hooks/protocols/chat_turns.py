# SPDX-License-Identifier: Apache-2.0
"""A further turn of a chat, as a model's own template has it: what follows an answer, asks again, and begins the next.

The template renders a chat of marks, and what stands between them is the turn::

    user: first   assistant: ANSWER   user: ASKED   (the next answer begins)
                             ╰──────╮       ╰─────────────────────────────╮
    of SmolLM2, for example   <|im_end|>\\n<|im_start|>user\\nASKED<|im_end|>\\n<|im_start|>assistant\\n
"""

import re
from dataclasses import dataclass
from typing import Any

from sequence_hooks.text.messages import FAULTS, describe_error

_THOUGHT = re.compile(r"<(/?)think>|\[(/?)THINK\]")
_ANSWER, _ASKED = "the-first-answer", "the-second-question"


@dataclass(frozen=True)
class Turn:
    """What surrounds a question that follows an unfinished answer."""

    before: str
    after: str

    def asking(self, question: str) -> str:
        """The text that ends the answer, asks ``question``, and begins the next answer."""
        return f"{self.before}{question}{self.after}"


def turn_of(tokenizer: Any) -> Turn:
    """The turn that the chat template of ``tokenizer`` makes, without thinking where the template knows of it.

    Raises:
        ValueError: there is no template, or none that can express a second question after an answer, or the next answer
            begins with what is thought.
    """
    name = getattr(tokenizer, "name_or_path", None) or type(tokenizer).__name__
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            f"the tokenizer {name!r} has no chat template, so no turn can be made for a point; use a chat model, or "
            "put a chat_template into its tokenizer_config.json"
        )
    texts = (("user", "the-first-question"), ("assistant", _ANSWER), ("user", _ASKED))
    messages = [{"role": role, "content": text} for role, text in texts]
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except FAULTS as error:
        raise ValueError(_refusal(name, f"it raises {describe_error(error)}")) from None
    for mark in (_ANSWER, _ASKED):
        if not isinstance(text, str) or text.count(mark) != 1:
            raise ValueError(_refusal(name, f"it has {mark!r} other than once"))
    before, asked, after = text.partition(_ANSWER)[2].partition(_ASKED)
    if not asked or not before or not after:
        raise ValueError(_refusal(name, "nothing stands between an answer, a question and the next answer"))
    _check_thinking(after, name)
    return Turn(before, after)


def _check_thinking(after: str, name: str) -> None:
    """Refuse what leaves a thought open: an expansion that follows it would be thought, and never said."""
    tags = list(_THOUGHT.finditer(after))
    if tags and not any(tags[-1].groups()):
        raise ValueError(
            f"the chat template of the tokenizer {name!r} begins the next answer with an open {tags[-1][0]!r}, also "
            "with enable_thinking=False, so an expansion would be a thought; use a model that can answer without "
            "thinking, or let its template close the thought where enable_thinking is false"
        )


def _refusal(name: str, reason: str) -> str:
    return (
        f"the chat template of the tokenizer {name!r} cannot express a user's question after an assistant's answer: "
        f"{reason}; give the model a template that can"
    )
