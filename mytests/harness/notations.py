# SPDX-License-Identifier: Apache-2.0
"""Each published notation, with the tags that are tokens of its models."""

from mytests.harness.tagged import Notation


def tags(*names: str) -> list[str]:
    return [f"{bracket}{name}>" for name in names for bracket in ("<", "</")]


NPR = Notation("npr", tags("guideline", "plan", "step", "takeaway"))
MULTIVERSE = Notation("multiverse", tags("Parallel", "Goal", "Outline", "Path", "Conclusion"))
THREADWEAVER = Notation("threadweaver", tags("Parallel", "Outlines", "Outline", "Thread"))
SPELT = Notation("threadweaver", [])
PARALLEL_R1 = Notation("parallel_r1", tags("Parallel", "Path", "Summary"))
PASTA = Notation("pasta", [])
HPD = Notation("hpd", ["<FORK>", "<CHILD>", "<|im_end|>", "<BLOCK>"])
PADOC = Notation("padoc", ["[fork]"], promise_token="[fork]")
APR = Notation("apr", [])
ASYNCTHINK = Notation("asyncthink", [])
SKELETON = Notation("skeleton", ["<|im_start|>", "<|im_end|>"])
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SKELETON.tokenizer.chat_template = CHAT
AT_THE_MARK = Notation(
    "skeleton", ["<|im_start|>", "<|im_end|>"], handlers={"###": "sequence_hooks.protocols.skeleton.handler"}
)
AT_THE_MARK.tokenizer.chat_template = CHAT
APR_WITH_BOS = Notation("apr", ["<s>"])
APR_WITH_BOS.tokenizer.bos_token = "<s>"


ALL = (NPR, MULTIVERSE, THREADWEAVER, SPELT, PARALLEL_R1, PASTA, HPD, PADOC, APR, ASYNCTHINK, SKELETON)
APR_NODES = (
    "Moving to Node #0\nCurrent State: 24:[4, 9, 3], Operations: []\n"
    "Generated Node #0,0: 24:[4, 6] Operation: 9-3=6\nGenerated Node #0,1: 24:[4, 12] Operation: 9+3=12\n"
)
APR_CALLS = (
    "<Calling Sub Searches>\n<Start Sub Search 0 at level 1> Moving to Node #0,0\n"
    "<Start Sub Search 1 at level 1> Moving to Node #0,1\n<End Calling Sub Searches>"
)
