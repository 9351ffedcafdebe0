# SPDX-License-Identifier: Apache-2.0
"""How this tree is laid over the pinned upstream release.

Upstream's whole package is in ``vllm/_upstream`` (fetched at install time, never committed).
A package of ours that exists upstream too appends upstream's folder to its ``__path__``, so a
module that we don't have is upstream's, under its usual name. A module of ours that exists
upstream too falls back to upstream's for names that it doesn't define.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

UPSTREAM_ROOT = Path(__file__).parent / "_upstream"


def extend_package(package: str, path: list[str]) -> None:
    """Append upstream's folder of ``package`` to its ``__path__`` (``path``, changed in place).

    Raises:
        ImportError: upstream's tree is not there, or has no such package.
    """
    folder = UPSTREAM_ROOT.joinpath(*package.split(".")[1:])
    if not (folder / "__init__.py").is_file():
        raise ImportError(
            f"{package}: upstream vLLM is not at {folder}; fetch and build it with "
            "'make setup', or install the package with 'pip install .'"
        )
    path.append(str(folder))


def fall_back_to(upstream: str) -> Callable[[str], Any]:
    """A module ``__getattr__`` that finds the names we don't define in module ``upstream``.

    Names are looked up at each access, so that a global that upstream rebinds has its current value.
    """

    def module_getattr(name: str) -> Any:
        try:
            return getattr(import_module(upstream), name)
        except AttributeError:
            here = upstream.replace("._upstream", "")
            raise AttributeError(f"module {here!r} has no attribute {name!r}") from None

    return module_getattr
