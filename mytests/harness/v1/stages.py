# SPDX-License-Identifier: Apache-2.0
"""Stages of a pipeline on CPUs, each a process."""

from typing import Any

STAGES: dict[str, Any] = {"worker_cls": "mytests.harness.v1.staged_worker.StagedWorker", "pipeline_parallel_size": 2}
"""Arguments of an engine that has two."""
