# SPDX-License-Identifier: Apache-2.0
"""What a built tree is made of, and hence the name that it is cached under."""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass

from build_tools.errors import SetupError
from build_tools.extension import SOURCES
from build_tools.processor import compile_flags, this_processor
from build_tools.release import SDIST, UPSTREAM_VERSION, WHEEL, Artifact, Target


@dataclass(frozen=True)
class Recipe:
    """Everything that makes one built tree differ from another."""

    target: Target
    artifact: Artifact
    torch_version: str
    python_tag: str
    flags: tuple[str, ...]
    sources: tuple[str, ...]

    @property
    def key(self) -> str:
        """A file name: readable, then a digest of all fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        parts = [UPSTREAM_VERSION, self.target.value, self.python_tag, self.torch_version, digest]
        return "-".join(part for part in parts if part)


def recipe_for(target: Target) -> Recipe:
    """How ``target`` is built with this interpreter and its torch, on this machine.

    Raises:
        SetupError: there is no torch to compile against, or no kernels for the processor.
    """
    if target is Target.CUDA:
        # The wheel's kernels are already built, for any Python and for its own torch version.
        return Recipe(target, WHEEL, "", "", (), ())
    try:
        import torch
    except ImportError:
        raise SetupError("there is no torch to compile against: install it first") from None
    return Recipe(
        Target.CPU,
        SDIST,
        torch.__version__,
        f"cp{sys.version_info[0]}{sys.version_info[1]}",
        compile_flags(this_processor()),
        SOURCES,
    )
