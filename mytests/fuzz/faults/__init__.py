# SPDX-License-Identifier: Apache-2.0
"""One list of planted faults, with the tests that must notice each.

A test that never fails proves nothing. Each `Fault` is a small change of our code that makes something go wrong, and
names its nets: the tests that must fail with it. ``make faults`` plants one after the other in both environments, runs
its nets, and writes to ``build/faults/faults.md`` which test of which tier has noticed it: a test without a model, one
with a model, or the fuzzer. A fault that a net doesn't notice fails the command. So does a net that fails without one.

    python -m mytests.fuzz.faults --only kept-detached     one fault of the environment's engine
    python -m pytest -p mytests.fuzz.faults.planting --fault kept-detached mytests/rules      any tests with a fault

To add one: name the function and what is replaced in it (`Edit`), and find a net by the second command.
``mytests/project/test_faults.py`` checks that all places and nets exist, and that each trap of
``docs/internals/plugin.md`` has a fault, or a reason in `NOT_PLANTED`.
The fuzzers' tests and those of the self-check plant theirs from this list.
"""

from mytests.fuzz.faults.fault import HERE, Engine, Fault
from mytests.fuzz.faults.of_checks import CHECKS
from mytests.fuzz.faults.of_ends import ENDS
from mytests.fuzz.faults.of_fork import FORK
from mytests.fuzz.faults.of_kv_traps import KV_TRAPS
from mytests.fuzz.faults.of_layer_traps import LAYER_TRAPS
from mytests.fuzz.faults.of_plugin import PLUGIN
from mytests.fuzz.faults.of_replacement import REPLACED
from mytests.fuzz.faults.of_traps import NOT_PLANTED, TRAPS
from mytests.fuzz.faults.of_waits import WAITS

FAULTS: tuple[Fault, ...] = (*FORK, *PLUGIN, *TRAPS, *KV_TRAPS, *LAYER_TRAPS, *CHECKS, *REPLACED, *WAITS, *ENDS)

__all__ = ["FAULTS", "NOT_PLANTED", "Fault", "fault_named", "faults_of"]


def faults_of(engine: Engine) -> tuple[Fault, ...]:
    """The faults that can be planted in one engine."""
    return tuple(fault for fault in FAULTS if engine in fault.engines)


def fault_named(name: str) -> Fault:
    """The fault with this id, of the engine that this environment has; raises a `LookupError` if there is none."""
    for fault in faults_of(HERE):
        if fault.id == name:
            return fault
    raise LookupError(f"the {HERE} has no fault {name!r}")
