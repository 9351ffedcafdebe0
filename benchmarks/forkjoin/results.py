# SPDX-License-Identifier: Apache-2.0
"""All figures of a run of the bench, and their medians, spreads and ratios within a round."""

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cpuinfo
import torch

from benchmarks.forkjoin.figures import Figures
from benchmarks.forkjoin.plans import Plan
from benchmarks.forkjoin.sides import CACHING, UPSTREAM, Kind


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that were measured."""

    processor: str
    cores: int
    threads: int
    python: str
    versions: dict[str, str]

    @classmethod
    def this(cls) -> "Machine":
        return cls(
            processor=cpuinfo.get_cpu_info()["brand_raw"],
            cores=os.cpu_count() or 1,
            threads=torch.get_num_threads(),
            python=platform.python_version(),
            versions={name: version(name) for name in ("vllm", "torch", "transformers", "numpy")},
        )


@dataclass(frozen=True)
class Results:
    """Figures, and the loads of `benchmarks.bench_pressure` as JSON."""

    command: str
    complete: bool
    """Whether the run reached its end."""

    seconds: float
    machine: Machine
    figures: list[Figures]
    loads: list[dict[str, Any]]

    def save(self, path: Path) -> None:
        """Write everything, one figure per line."""
        record = asdict(self)
        lines = ",\n".join(json.dumps(each) for each in record.pop("figures"))
        path.write_text(json.dumps(record)[:-1] + ',\n"figures": [\n' + lines + "\n]}\n")

    @classmethod
    def load(cls, path: Path) -> "Results":
        """What `save` wrote."""
        record = json.loads(path.read_text())
        for each in record["figures"]:
            each["plan"] = Plan(**{**each["plan"], "lengths": tuple(each["plan"]["lengths"])})
        record["figures"] = [Figures(**each) for each in record["figures"]]
        return cls(**{**record, "machine": Machine(**record["machine"])})

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(each.model for each in self.figures))

    def plans(self, model: str, way: str) -> list[Plan]:
        """The plans of a model and a way, in the order in which they were measured."""
        return list(dict.fromkeys(each.plan for each in self.figures if each.model == model and each.way == way))

    def of(self, model: str, way: str, kind: Kind, plan: Plan) -> list[Figures]:
        """The figures of one side, one per round."""
        found = [each for each in self.figures if (each.model, each.way, each.plan) == (model, way, plan)]
        return sorted((each for each in found if each.side == kind.name), key=lambda each: each.round)

    def bounds(self, model: str, plan: Plan) -> list[Figures]:
        """The bound: a fork and join in no time, from the batched steps and the tail of other sides; one per round."""
        cached = self.of(model, "by_client", CACHING, plan)
        sequence = self.of(model, "in_sequence", UPSTREAM, plan)
        return [_bound(one, two) for one, two in zip(cached, sequence, strict=True)]


def _bound(client: Figures, sequence: Figures) -> Figures:
    before = sequence.seconds - sequence.children - sequence.join - sequence.tail
    join = sequence.join
    return Figures(
        model=client.model,
        side="bound",
        way="bound",
        plan=client.plan,
        round=client.round,
        elsewhere=max(client.elsewhere, sequence.elsewhere),
        seconds=before + client.decode + join + sequence.tail,
        prefill=sequence.prefill,
        children=client.decode,
        decode=client.decode,
        join=join,
        tail=sequence.tail,
    )


def median(figures: Sequence[Figures], name: str = "seconds") -> float:
    """The median of the field or property of that name, over the rounds."""
    return statistics.median(_values(figures, name))


def spread(figures: Sequence[Figures], name: str = "seconds") -> float:
    """The range of the values, relative to their median."""
    values = _values(figures, name)
    return (max(values) - min(values)) / statistics.median(values)


def ratios(ones: Sequence[Figures], others: Sequence[Figures], name: str = "seconds") -> list[float]:
    """The ratios of figures of the same rounds."""
    return [one / other for one, other in zip(_values(ones, name), _values(others, name), strict=True)]


def ratio(ones: Sequence[Figures], others: Sequence[Figures], name: str = "seconds") -> float:
    """The median of `ratios`."""
    return statistics.median(ratios(ones, others, name))


def _values(figures: Sequence[Figures], name: str) -> list[float]:
    return [getattr(each, name) for each in figures]
