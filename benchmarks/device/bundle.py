# SPDX-License-Identifier: Apache-2.0
"""What a machine without a network lacks beside its vLLM: ``python -m benchmarks.device.bundle`` gathers it here.

That is the plug-in's wheel, and what its tests need and an image with a vLLM has not. `install` takes it from there.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "device-bundle"
MOST_BYTES = 60_000_000
TESTS = ("pytest", "hypothesis")


def main() -> None:
    """Make the folder, and print it with its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="the Python of the other machine; vLLM's own images have 3.12")
    python = parser.parse_args().python
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        # Whoever builds a wheel leaves files beside its sources.
        copy = shutil.copytree(ROOT / "sequence_hooks", Path(folder) / "sequence_hooks")
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", FOLDER, copy], check=True)
    wheels = ["download", "--only-binary=:all:", "--python-version", python, "--no-deps", "--dest", FOLDER]
    subprocess.run([*pip, *wheels, *_closure()], check=True)
    size = sum(each.stat().st_size for each in FOLDER.iterdir())
    if size > MOST_BYTES:
        sys.exit(f"{FOLDER} has {size} bytes, and is to have {MOST_BYTES} at most")
    print(f"{FOLDER}: {size / 1e6:.1f} MB")


def _closure() -> list[str]:
    """The tests' packages with what they need, in the versions of this environment."""
    from importlib.metadata import requires, version

    from packaging.requirements import Requirement

    found, open_names = {}, list(TESTS)
    while open_names:
        name = open_names.pop()
        if name in found:
            continue
        found[name] = version(name)
        needed = map(Requirement, requires(name) or ())
        open_names += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return [f"{name}=={found[name]}" for name in sorted(found)]


def install(folder: Path) -> None:
    """Install what the folder has into this interpreter's environment, without a network."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        sys.exit(f"--install {folder}: no wheel is there; `make device-bundle` makes {FOLDER}")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *wheels], check=True)


if __name__ == "__main__":
    main()
