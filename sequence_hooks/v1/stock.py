# SPDX-License-Identifier: Apache-2.0
"""Whether ``import vllm`` would find one that the plug-in is for. Ask first: this module imports none."""

import os
from importlib.util import find_spec
from pathlib import Path


def check_stock() -> None:
    """Raise an `ImportError` where the fork would be imported, as in the root of its checkout, or none at all.

    Only its plug-in needs a stock one; what fails otherwise is some import deep inside upstream's, in this process or
    in one that upstream starts in the same folder.
    """
    spec = find_spec("vllm")
    if spec is None:
        raise ImportError("vllm is not installed here; the plug-in needs one of its releases: see docs/install.md")
    folders = [Path(spec.origin or "").parent]
    if not os.environ.get("PYTHONSAFEPATH"):
        folders.append(Path("vllm"))
    for folder in folders:
        if (folder / "_overlay.py").exists():
            raise ImportError(
                f"vllm would be imported from {folder.absolute()}, the fork of this repository, and the plug-in needs "
                "a stock one: start Python in another folder, such as examples/, or with PYTHONSAFEPATH=1; on the fork "
                "itself, vllm.LLM takes special_kwargs"
            )
