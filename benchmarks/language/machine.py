# SPDX-License-Identifier: Apache-2.0
"""The machine that is measured on, and what else it does."""

import os

import cpuinfo
import psutil


def device() -> str:
    """Its processor, and how many of its cores there are."""
    return f"{os.cpu_count()} x {cpuinfo.get_cpu_info()['brand_raw']}"


def busy_elsewhere() -> float:
    """Seconds of all processors, but for those of this process and of the processes that it has started."""
    all_, own = psutil.cpu_times(), psutil.Process()
    ours = [own.cpu_times(), *(each.cpu_times() for each in own.children(recursive=True))]
    used = sum(each.user + each.system + each.children_user + each.children_system for each in ours)
    return float(all_.user + all_.nice + all_.system + all_.irq + all_.softirq + all_.steal - used)
