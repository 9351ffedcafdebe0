# SPDX-License-Identifier: Apache-2.0
"""Builds upstream's CPU extension: a program of its own, so that its output can be kept separate.

Arguments: upstream's source folder, the folder for ``_C.abi3.so``, then the compiler's flags.
"""

import sys
import tempfile
from pathlib import Path

# The sources that upstream's own build compiles without AVX-512.
SOURCES = (
    "activation.cpp",
    "attention.cpp",
    "cache.cpp",
    "utils.cpp",
    "layernorm.cpp",
    "mla_decode.cpp",
    "pos_encoding.cpp",
    "torch_bindings.cpp",
)


def main(source: str, output: str, *flags: str) -> None:
    """Compile ``SOURCES``; raises whatever torch's build raises."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    csrc = Path(source).resolve() / "csrc"
    extension = CppExtension(
        "_C",
        [str(csrc / "cpu" / name) for name in SOURCES],
        include_dirs=[str(csrc)],
        extra_compile_args=list(flags),
        extra_link_args=[flag for flag in flags if flag == "-fopenmp"],
        py_limited_api=True,
    )
    command = BuildExtension(Distribution({"name": "kernels", "ext_modules": [extension]}))
    with tempfile.TemporaryDirectory() as objects:
        command.build_lib = output
        command.build_temp = objects
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
