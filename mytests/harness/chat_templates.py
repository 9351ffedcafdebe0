# SPDX-License-Identifier: Apache-2.0
"""Chat templates of the form that publishers of models give them, with their control tokens, in words of our own."""

from dataclasses import dataclass

from mytests.harness.notations import SKELETON


@dataclass(frozen=True)
class Family:
    """A chat template, and what it makes of a question "Q" after an answer, up to where the next answer begins."""

    template: str
    turn: str


_ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
_CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
_CHATML_TURN = "<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
_HEADER = "'<|start_header_id|>' + {} + '<|end_header_id|>\n\n'"
_ANSWERS_WITHOUT_THOUGHTS = "{% set said = m.content.split('</think>')[-1].lstrip('\n') %}"
_LAST_QUESTION = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
)

FAMILIES = {
    # SmolLM2 Instruct: ChatML; without a system's turn of the caller's it has one of its own.
    "smollm2": Family(
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe of help.<|im_end|>\n' }}{% endif %}"
        + _CHATML
        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        _CHATML_TURN,
    ),
    # Llama 3.1 to 3.3 Instruct: always a system's turn; text is trimmed.
    "llama3": Family(
        f"{{{{ bos_token }}}}{{{{ {_HEADER.format(repr('system'))} + 'Today Date: a day' + '\n\n<|eot_id|>' }}}}"
        f"{{% for m in messages %}}{{{{ {_HEADER.format('m.role')} + m.content | trim + '<|eot_id|>' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {_HEADER.format(repr('assistant'))} }}}}{{% endif %}}",
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    # Qwen3: answers before the last question have no thoughts; the last answer has some, if empty ones; the switch
    # closes them before they begin.
    "qwen3": Family(
        _LAST_QUESTION
        + "{% for m in messages %}{% if m.role == 'assistant' %}"
        + _ANSWERS_WITHOUT_THOUGHTS
        + "{% set open = '<think>\n\n</think>\n\n' if loop.index0 > ns.last else '' %}"
        + "{{ '<|im_start|>assistant\n' + open + said + '<|im_end|>\n' }}"
        + "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        + "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
        + "{% endif %}",
        _CHATML_TURN + "<think>\n\n</think>\n\n",
    ),
    # Qwen3.5: as Qwen3, but it opens the thoughts itself where they are not switched off.
    "qwen3.5": Family(
        _CHATML
        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        + "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
        + "{% else %}{{ '<think>\n' }}{% endif %}{% endif %}",
        _CHATML_TURN + "<think>\n\n</think>\n\n",
    ),
    # Gemma 3: its name for the assistant is another one; roles alternate, and text is trimmed.
    "gemma3": Family(
        "{{ bos_token }}"
        + _ALTERNATES
        + "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
        + "{{ m.content | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
        + "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        "<end_of_turn>\n<start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\n",
    ),
    # Mistral 7B Instruct up to v0.3: nothing begins an answer but the end of the question; spaces around texts.
    "mistral-7b": Family(
        "{{ bos_token }}"
        + _ALTERNATES
        + "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        + "{% else %}{{ ' ' + m.content | trim + '</s>' }}{% endif %}{% endfor %}",
        "</s>[INST] Q [/INST]",
    ),
    # Mistral Small 3: a system's turn, and no spaces.
    "mistral-small": Family(
        "{{ bos_token }}{{ '[SYSTEM_PROMPT]Be of help.[/SYSTEM_PROMPT]' }}"
        + _ALTERNATES
        + "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
        + "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}",
        "</s>[INST]Q[/INST]",
    ),
}

THINKING = {
    # Qwen3 Thinking 2507 and QwQ: there is no switch.
    "qwen3-thinking": _CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
    # DeepSeek-R1 and what was distilled from it: thoughts of earlier answers are left out.
    "deepseek-r1": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% else %}"
        + _ANSWERS_WITHOUT_THOUGHTS
        + "{{ '<|Assistant|>' + said + '<|end_of_sentence|>' }}{% endif %}{% endfor %}"
        + "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
    ).replace("|", "\uff5c"),
    "one-that-thinks-again": _CHATML + "{{ '<think>\n\n</think>\n\n<think>' if add_generation_prompt else '' }}",
}
"""Templates of models that only think: what begins an answer has opened its thinking."""

CHATML = SKELETON.tokenizer.chat_template
