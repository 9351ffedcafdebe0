# SPDX-License-Identifier: Apache-2.0
"""The compiler's flags for this processor.

AVX-512 is left out on purpose: with it, upstream's bindings need oneDNN's sources from the network.
"""

import platform
from dataclasses import dataclass

from build_tools.errors import SetupError

X86_FEATURES = {"avx2": "-mavx2", "fma": "-mfma", "f16c": "-mf16c"}
POWER_TUNINGS = {"POWER9": "power9", "POWER10": "power10", "POWER11": "power10"}


@dataclass(frozen=True)
class Processor:
    """What decides the flags: names as ``platform`` and ``cpuinfo`` give them."""

    system: str
    machine: str
    features: frozenset[str]
    brand: str = ""


def this_processor() -> Processor:
    """The machine that the build runs on."""
    import cpuinfo

    info = cpuinfo.get_cpu_info()
    return Processor(
        platform.system(),
        platform.machine(),
        frozenset(info.get("flags", ())),
        info.get("brand_raw", ""),
    )


def compile_flags(processor: Processor) -> tuple[str, ...]:
    """All flags for upstream's kernels.

    Raises:
        SetupError: upstream has no kernels for this processor.
    """
    parallel = () if processor.system == "Darwin" else ("-fopenmp",)
    defines = ("-DVLLM_CPU_EXTENSION", "-DVLLM_NUMA_DISABLED")
    return ("-O3", "-g0", *parallel, *_instruction_set_flags(processor), *defines)


def _instruction_set_flags(processor: Processor) -> tuple[str, ...]:
    match processor.machine:
        case "x86_64" | "AMD64":
            if processor.features.issuperset(X86_FEATURES):
                return tuple(X86_FEATURES.values())
        case "arm64" if processor.system == "Darwin":
            return ()
        case "aarch64" | "arm64":
            if "asimd" in processor.features:
                return _arm_flags(processor)
        case "ppc64le":
            for generation, tuning in POWER_TUNINGS.items():
                if generation in processor.brand.upper():
                    return ("-mvsx", f"-mcpu={tuning}", f"-mtune={tuning}")
        case "s390x":
            return ("-mvx", "-mzvector", "-march=native", "-mtune=native")
    raise SetupError(
        f"this processor ({processor.machine}) is not supported: upstream's CPU kernels need "
        "x86-64 with AVX2, ARMv8 with ASIMD, POWER9 or later, or S390X"
    )


def _arm_flags(processor: Processor) -> tuple[str, ...]:
    if "bf16" in processor.features:
        return ("-march=armv8.2-a+bf16+dotprod+fp16", "-DARM_BF16_SUPPORT")
    return ("-march=armv8.2-a+dotprod+fp16",)
