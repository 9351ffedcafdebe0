# SPDX-License-Identifier: Apache-2.0
"""Teaches SmolLM2-135M-Instruct to fork and join: an adapter (LoRA), on a CPU.

The rows are those of `sequence_hooks.training`, which the engine computes; the loop is a plain one, and the adapter is
`peft`'s. A run that was interrupted goes on where it last saved. The same arguments give the same weights on the same
kind of processor.

Usage: `python examples/train_language.py MODEL_FOLDER answers.jsonl ADAPTER_FOLDER`
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from language_task import PROMISE, SEPARATOR, SYNC, Answer, chat, has_bfloat16, read, tree_of
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from sequence_hooks.training import TreeBatch, TreeRows, additive_mask, encoded, lay_out

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The name under which the base model was published."""

LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
STATE = "state.pt"
"""What an interrupted run goes on from, in the adapter's folder."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train."""

    epochs: int
    trees: int
    """In a step."""

    learning_rate: float
    tag_weight: float
    """What a tag, or what ends a sequence, counts in the loss beside any other token."""

    rank: int
    seed: int


class Learner:
    """A causal model of transformers, of which those parameters learn that require gradients, and its next steps."""

    def __init__(self, model: Any, rows: Sequence[TreeRows], tags: Sequence[int], plan: Plan) -> None:
        self._model, self._rows, self._plan = model, rows, plan
        self._tags = torch.tensor(sorted(tags))
        self._steps = list(_order(len(rows), plan))
        self._optimizer = torch.optim.AdamW(self._parameters(), lr=plan.learning_rate, weight_decay=0.0)
        self.losses: list[float] = []
        """One for each step that was taken."""

    def __len__(self) -> int:
        return len(self._steps)

    def step(self) -> float:
        """One step of the optimizer; returns its loss."""
        batch = TreeBatch.of([self._rows[number] for number in self._steps[len(self.losses)]], pad_token_id=0)
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.learning_rate * self._pace()
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            loss = self._loss(batch)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters(), 1.0)
        self._optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        parameters = [parameter.detach() for parameter in self._parameters()]
        return {"parameters": parameters, "optimizer": self._optimizer.state_dict(), "losses": self.losses}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` has returned."""
        for parameter, saved in zip(self._parameters(), state["parameters"], strict=True):
            parameter.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])
        self.losses = list(state["losses"])

    def _pace(self) -> float:
        done = len(self.losses)
        return float(min(1, (done + 1) / 20) * (1 - done / len(self._steps)))

    def _loss(self, batch: TreeBatch) -> torch.Tensor:
        """The mean of all tokens that are sampled, of which tags count more."""
        model, trained = self._model, batch.loss_mask
        mask = additive_mask(batch, model.dtype)
        hidden = model.model(batch.input_ids, position_ids=batch.position_ids, attention_mask=mask).last_hidden_state
        # Most of a step's memory would be logits of places that predict nothing.
        logits, targets = model.lm_head(hidden[trained]), batch.target_ids[trained]
        weights = torch.where(torch.isin(targets, self._tags), self._plan.tag_weight, 1.0)
        return (weights * cross_entropy(logits.float(), targets, reduction="none")).sum() / weights.sum()

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]


def rows_of(answers: Sequence[Answer], tokenizer: Any) -> list[TreeRows]:
    """Each answer's tree, laid out as the engine computes it."""

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    trees = (tree_of(answer, chat(answer.question, tokenizer), tokenizer.eos_token) for answer in answers)
    return [lay_out([encoded(tree, encode)], "concatenate") for tree in trees]


def base_model(folder: str) -> Any:
    """The model to begin with, in the type that its processor multiplies fastest."""
    dtype = torch.bfloat16 if has_bfloat16() else torch.float32
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=dtype)


def with_adapter(model: Any, rank: int) -> Any:
    """An adapter within ``model``, which alone learns from now on, and changes nothing yet; to be saved."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(LINEAR_LAYERS), task_type="CAUSAL_LM")
    return get_peft_model(model, config)


def train(learner: Learner, folder: Path, save_every: int = 50) -> None:
    """All steps that are left; the adapter and the losses are in ``folder`` afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / STATE
    if state.exists():
        learner.restore(torch.load(state, weights_only=True))
    with tqdm(total=len(learner), initial=len(learner.losses), unit="step") as bar:
        while len(learner.losses) < len(learner):
            bar.set_postfix(loss=f"{learner.step():.3f}")
            bar.update()
            if len(learner.losses) % save_every == 0:
                torch.save(learner.state(), state)
    (folder / "losses.json").write_text(json.dumps([round(loss, 4) for loss in learner.losses]) + "\n")
    state.unlink(missing_ok=True)


def _order(num_rows: int, plan: Plan) -> Iterator[list[int]]:
    """The numbers of each step's trees."""
    rng = random.Random(plan.seed)
    for _ in range(plan.epochs):
        numbers = rng.sample(range(num_rows), num_rows)
        for start in range(0, num_rows, plan.trees):
            yield numbers[start : start + plan.trees]


def parse_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="the link that `make language-model` prints")
    parser.add_argument("answers", type=Path, help="what language_data.py has written")
    parser.add_argument("output", type=Path, help="the adapter's folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--trees", type=int, default=2, help="in a step")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--tag-weight", type=float, default=4.0)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Train one adapter; ``given`` are the arguments, by default the command line's."""
    arguments = vars(parse_arguments(given))
    folder, answers, output = (arguments.pop(name) for name in ("model", "answers", "output"))
    plan = Plan(**arguments)
    torch.manual_seed(plan.seed)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), base_model(folder)
    adapter = with_adapter(model, plan.rank)
    # An outline is closed by the line break before its sync token.
    (line_break,) = tokenizer.encode(SEPARATOR, add_special_tokens=False)
    tags = [line_break, *tokenizer.convert_tokens_to_ids([PROMISE, SYNC, tokenizer.eos_token])]
    train(Learner(model, rows_of(read(answers), tokenizer), tags, plan), output)
    # And not the folder of this machine that it was made from.
    adapter.peft_config["default"].base_model_name_or_path = BASE
    adapter.to(torch.bfloat16).save_pretrained(output)


if __name__ == "__main__":
    main()
