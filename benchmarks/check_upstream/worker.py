# SPDX-License-Identifier: Apache-2.0
"""Greedy tokens and logprobs from whichever vLLM is installed for this interpreter.

Run as a file, not as a module: the checkout must not be on the path of the pristine environment.
Arguments: a JSON file with ``model``, ``prompts`` and ``engine`` (arguments of ``LLM``), and the JSON
file to write.
"""

import json
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def main(task_file: str, result_file: str) -> None:
    """Generate for all prompts in one batch, as a user would."""
    from vllm import LLM, SamplingParams
    from vllm.utils import Device

    task = json.loads(Path(task_file).read_text())
    llm = LLM(
        task["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        seed=0,
        use_tqdm_on_load=False,
        **task["engine"],
    )
    params = SamplingParams(temperature=0, max_tokens=32, logprobs=5, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in task["prompts"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    result = {
        "version": version("vllm"),
        "pristine": find_spec("vllm._overlay") is None,
        "engine": type(llm.llm_engine).__module__,
        "cache_hit_rate": llm.llm_engine.scheduler[0].get_prefix_cache_hit_rate(Device.GPU),
        "sequences": [sequence_record(output.outputs[0]) for output in outputs],
    }
    Path(result_file).write_text(json.dumps(result))


def sequence_record(completion: Any) -> dict[str, Any]:
    """Token ids, and for each the logprobs by token id."""
    logprobs = [{str(token): entry.logprob for token, entry in position.items()} for position in completion.logprobs]
    return {"tokens": list(completion.token_ids), "logprobs": logprobs}


if __name__ == "__main__":
    main(*sys.argv[1:])
