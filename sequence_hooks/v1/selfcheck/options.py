# SPDX-License-Identifier: Apache-2.0
"""The command's options: its own, and all of upstream's for an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.v1 import plugin
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

TOLERANCES = {"torch.float32": 1e-3}
OTHER_TOLERANCE = 0.2
"""For types of 16 bits and less, whose logits of about 20 are rounded by about 0.1."""


@dataclass(frozen=True)
class Options:
    """What the command was asked for."""

    engine: EngineArgs
    tolerance: float | None
    """The most by which a logprob may be off; None for what the model's type allows."""


def parse(arguments: Sequence[str] | None) -> Options:
    """The options of a command line; an invalid one ends the process with status 2."""
    # Also where VLLM_PLUGINS leaves it out.
    plugin.register()
    parser: Any = EngineArgs.add_cli_args(
        FlexibleArgumentParser(  # type: ignore[no-untyped-call]
            prog="python -m sequence_hooks.selfcheck",
            usage="python -m sequence_hooks.selfcheck MODEL [--tolerance LOGPROB] [options of vLLM's engine]",
            description="Forks, joins, pressure and aborts on this engine and this model, against the engine without "
            "hooks. Exit status: 0 if all is the same, 1 if something differs, 2 if an engine could not be started.",
        )
    )
    parser.add_argument("checked", metavar="MODEL", help="any model that generates text; it need not know hooks")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="LOGPROB",
        help="logprobs may differ by as much, and tokens where two are as likely, because the shape of a batch changes "
        f"floating point. Default: {TOLERANCES['torch.float32']} for float32, {OTHER_TOLERANCE} for shorter types",
    )
    given = parser.parse_args(None if arguments is None else list(arguments))
    given.model, given.disable_log_stats = given.checked, True
    engine = EngineArgs.from_cli_args(given)
    if engine.scheduler_cls is not None:
        parser.error("leave --special-kwargs and --scheduler-cls out: the checks have hooks of their own")
    if engine.data_parallel_size > 1:
        parser.error(f"--data-parallel-size is {engine.data_parallel_size}; leave it out: its engines are all alike")
    return Options(engine, given.tolerance)


def tolerance_of(options: Options, dtype: object) -> float:
    """The tolerance for a model of the type ``dtype``, in units of logprobs."""
    default = TOLERANCES.get(str(dtype), OTHER_TOLERANCE)
    return default if options.tolerance is None else options.tolerance
