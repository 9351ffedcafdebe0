# SPDX-License-Identifier: Apache-2.0
"""Which workers copy KV from slot to slot, and the error if none can."""

from sequence_hooks.config.refusals import not_injected
from sequence_hooks.text.messages import abbreviated

_HOOK_WORKERS = {
    "vllm.worker.cpu_worker.CPUWorker": "vllm.worker.hook_cpu_worker.HookCPUWorker",
    "vllm.worker.worker.Worker": "vllm.worker.hook_gpu_worker.HookWorker",
}


def hook_worker_for(worker_cls: str) -> str:
    """The qualified name of our worker in place of upstream's ``worker_cls``; ours stay as they are.

    Raises:
        ValueError: we have no worker in its place.
    """
    if worker_cls in _HOOK_WORKERS.values():
        return worker_cls
    if worker_cls not in _HOOK_WORKERS:
        raise refusal(f"the worker {abbreviated(worker_cls)}")
    return _HOOK_WORKERS[worker_cls]


def refusal(what: str) -> ValueError:
    """The error that says what KV injection does not work with, and the way out."""
    return ValueError(not_injected(what))
