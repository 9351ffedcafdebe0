# SPDX-License-Identifier: Apache-2.0
"""For type checkers alone: `vllm.core.scheduler` is upstream's module, so that a misspelled attribute is reported."""

from vllm._upstream.core.scheduler import (
    PreemptionMode as PreemptionMode,
)
from vllm._upstream.core.scheduler import (
    ScheduledSequenceGroup as ScheduledSequenceGroup,
)
from vllm._upstream.core.scheduler import (
    Scheduler as Scheduler,
)
from vllm._upstream.core.scheduler import (
    SchedulerOutputs as SchedulerOutputs,
)
from vllm._upstream.core.scheduler import (
    SchedulerPrefillOutputs as SchedulerPrefillOutputs,
)
from vllm._upstream.core.scheduler import (
    SchedulerRunningOutputs as SchedulerRunningOutputs,
)
from vllm._upstream.core.scheduler import (
    SchedulerSwappedInOutputs as SchedulerSwappedInOutputs,
)
from vllm._upstream.core.scheduler import (
    SchedulingBudget as SchedulingBudget,
)
