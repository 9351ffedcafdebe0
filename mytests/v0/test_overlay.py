# SPDX-License-Identifier: Apache-2.0
"""How our tree lies over upstream's: one copy of every module, upstream's names, our changes."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import vllm
import vllm._overlay
from sequence_hooks.v1.stock import check_stock
from vllm._overlay import UPSTREAM_ROOT, extend_package
from vllm._upstream import sequence as upstream_sequence
from vllm.sequence import SequenceStatus

OURS = Path(vllm.__file__).parent


def overlay_modules() -> list[str]:
    """Our modules that stand at a path of upstream's."""
    found = []
    for path in OURS.rglob("*.py"):
        relative = path.relative_to(OURS)
        if "_upstream" in relative.parts or path.name in ("__init__.py", "_version.py"):
            continue
        if (UPSTREAM_ROOT / relative).is_file():
            found.append("vllm." + ".".join(relative.with_suffix("").parts))
    return sorted(found)


def our_packages() -> list[str]:
    """Our packages that upstream has too, the root excepted."""
    packages = [path.parent.relative_to(OURS) for path in OURS.glob("[!_]*/**/__init__.py")]
    return ["vllm." + ".".join(p.parts) for p in packages if (UPSTREAM_ROOT / p).is_dir()]


def run_python(code: str) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_module_that_we_dont_have_is_upstreams() -> None:
    """Under its usual name."""
    module = importlib.import_module("vllm.core.block_manager")
    assert module.__name__ == "vllm.core.block_manager"
    assert Path(str(module.__file__)).is_relative_to(UPSTREAM_ROOT)


def test_no_module_is_imported_twice() -> None:
    """Of upstream's modules only those that ours extend are imported as vllm._upstream.*."""
    printed = run_python(
        "import sys, vllm\n"
        "for name in vllm.__all__: getattr(vllm, name)\n"
        "import vllm.entrypoints.openai.api_server, vllm.v1.engine.async_llm\n"
        "print(*(m for m in sys.modules if m.startswith('vllm._upstream.')))"
    )
    allowed = {name.replace("vllm.", "vllm._upstream.", 1) for name in [*overlay_modules(), *our_packages()]}
    # Upstream's root package reads its own version.
    allowed |= {"vllm._upstream.version", "vllm._upstream._version"}
    assert set(printed.splitlines()[-1].split()) <= allowed


@pytest.mark.parametrize("name", overlay_modules())
def test_an_overlay_module_has_all_of_upstreams_names(name: str) -> None:
    """What we don't define is passed on; a class inherits, but for the one enum; what nobody has is an error."""
    ours = importlib.import_module(name)
    upstream = importlib.import_module(name.replace("vllm.", "vllm._upstream.", 1))
    assert [attribute for attribute in vars(upstream) if not hasattr(ours, attribute)] == []
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'no_such_name'"):
        _ = ours.no_such_name
    for attribute, value in vars(ours).items():
        if isinstance(value, type) and value.__module__ == name and value is not SequenceStatus:
            base = getattr(upstream, attribute, None)
            assert base is None or issubclass(value, base)


def test_every_package_of_ours_reaches_upstreams_folder() -> None:
    """A subpackage without upstream's folder on its path would hide upstream's modules."""
    for name in our_packages():
        folders = list(importlib.import_module(name).__path__)
        assert any(Path(folder).is_relative_to(UPSTREAM_ROOT) for folder in folders), name


def test_sequence_status_is_upstreams_with_blocked() -> None:
    """Members and values are pinned; upstream's own module sees the same enum."""
    assert {status.name: int(status) for status in SequenceStatus} == {
        "BLOCKED": -1,
        "WAITING": 0,
        "RUNNING": 1,
        "SWAPPED": 2,
        "FINISHED_STOPPED": 3,
        "FINISHED_LENGTH_CAPPED": 4,
        "FINISHED_ABORTED": 5,
        "FINISHED_IGNORED": 6,
    }
    assert upstream_sequence.SequenceStatus is SequenceStatus


def test_a_missing_upstream_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first thing that a fresh checkout would meet."""
    monkeypatch.setattr(vllm._overlay, "UPSTREAM_ROOT", tmp_path)
    with pytest.raises(ImportError, match=r"upstream vLLM is not at .*make setup"):
        extend_package("vllm.core", [])


def test_the_root_package_has_upstreams_public_names() -> None:
    """Resolved in this package, so that isinstance works across it; any other is an AttributeError."""
    from vllm.outputs import CompletionOutput

    assert vllm.CompletionOutput is CompletionOutput
    assert "0.9.2+hooks" in vllm.__version__
    assert {"LLM", "SamplingParams", "__version__"} <= set(vllm.__all__)
    with pytest.raises(AttributeError, match="module 'vllm' has no attribute 'no_such_name'"):
        _ = vllm.no_such_name


def test_what_upstreams_root_package_imports_is_an_attribute() -> None:
    """`import vllm; vllm.envs.VLLM_USE_V1`; it sets variables that torch reads, whichever module comes next."""
    names = ["envs", "logger", "env_override"]
    is_imported = "'vllm.env_override' in sys.modules"
    printed = run_python(f"import sys, vllm; print({is_imported}, *(getattr(vllm, name).__name__ for name in {names}))")
    assert printed.splitlines()[-1].split() == ["True", *(f"vllm.{name}" for name in names)]


def test_only_overlay_modules_import_upstream() -> None:
    """All other code of ours says vllm.*."""
    allowed = {OURS / "__init__.py", OURS / "_overlay.py"}
    allowed |= {OURS.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in overlay_modules()}
    allowed |= {OURS.joinpath(*name.split(".")[1:], "__init__.py") for name in our_packages()}
    ours = [path for path in OURS.rglob("*.py") if not path.is_relative_to(UPSTREAM_ROOT)]
    assert [path for path in ours if "vllm._upstream" in path.read_text() and path not in allowed] == []


def test_the_plug_in_notices_the_fork() -> None:
    """It needs a stock vLLM, and says so before it fails for another reason."""
    with pytest.raises(ImportError, match=r"the fork of this repository, .*, vllm\.LLM takes special_kwargs"):
        check_stock()
