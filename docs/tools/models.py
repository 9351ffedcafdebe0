# SPDX-License-Identifier: Apache-2.0
"""Writes docs/models.md: which architectures of the installed vLLM hooks work with, and what is refused of which.

.venv-plugin/bin/python -m docs.tools.models
"""

import argparse
import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from docs.tools.model_classes import CHUNK, KINDS, LATENT, WINDOW, Architecture, Models
from sequence_hooks.config.refusals import (
    GENERATES,
    NO_ENCODER,
    ONE_BY_ONE,
    layers_not_injected,
    not_causal,
    not_injected,
    not_shared,
    refused,
)

PAGE = Path("docs/models.md")
TESTS = Path(__file__).resolve().parent.parent.parent / "mytests"
WORKS, REFUSED = "work", "are refused"
_WALKS = "`mytests/v1/test_random_walks.py`"
_INJECTED = "`mytests/v1/test_injection_on_models.py`"
_REFUSES = "`mytests/v1/test_checks.py`"


_TREES = "mytests/fuzz/test_fuzz.py::test_trees_of_each_architecture"
_SELFCHECK = "mytests/v1/test_selfcheck.py::TestCommand::test_windows_and_states_pass_them_too"


def _trees_of(*architectures: str) -> str:
    """The fuzzer's tests with models of ``architectures``."""
    return ", ".join(f"`{_TREES}[{each}]`" for each in architectures)


@dataclass(frozen=True)
class Class:
    """Architectures with which hooks do the same."""

    title: str
    hooks: str
    """What hooks do with them, beginning with `WORKS` or `REFUSED`."""

    injection: str
    """The same with ``kv_inject``."""

    shown_by: str
    """The tests that show it, as Markdown."""


_WITH_WINDOWS = "work; layers with a window keep the KV of the whole context. Where all layers have one: "
_ALIGNED = "work; up to 0.31 a model may need `mamba_cache_mode='align'`"
CLASSES = (
    Class(
        "Draft models",
        "draft for a model without states (tried: an ordinary draft model, no EAGLE or MTP); not served by themselves",
        f"{REFUSED}: " + not_injected("speculative_config.method='eagle', which has KV of its own", "use 'ngram'"),
        "`mytests/v1/test_speculation.py`, where a model drafts for itself",
    ),
    Class("Pooling", f"{REFUSED}: " + refused("runner='pooling'", GENERATES), "", _REFUSES),
    Class(
        "Encoder and decoder",
        f"{REFUSED}: " + refused("model='…'", NO_ENCODER),
        "",
        "`mytests/v0/test_check_layers.py`",
    ),
    Class("Diffusion", f"{REFUSED}: " + refused("model='…'", ONE_BY_ONE), "", _REFUSES),
    Class("Layers that no child can share", f"{REFUSED}: " + not_shared("CircularBufferSpec"), "", _REFUSES),
    Class("Prompts read in both directions", f"{REFUSED}: {not_causal()}", "", _REFUSES),
    Class(
        "States alone",
        WORKS,
        f"{REFUSED}: " + layers_not_injected("MambaSpec"),
        f"{_trees_of('mamba2')}, {_WALKS}, {_REFUSES}; Mamba-1: no test",
    ),
    Class(
        "States and attention",
        _ALIGNED,
        f"{REFUSED}: " + layers_not_injected("MambaSpec"),
        f"{_trees_of('granitemoehybrid', 'falcon_h1', 'lfm2')}, `{_SELFCHECK}[qwen3_next-bfloat16]`, "
        f"{_WALKS}, {_REFUSES}; states of Mamba-1, KDA and lightning attention, which no CPU computes: no test",
    ),
    Class(
        "Chunks and full attention",
        WORKS,
        _WITH_WINDOWS + layers_not_injected("ChunkedLocalAttentionSpec"),
        f"{_INJECTED}, {_WALKS}",
    ),
    Class(
        "Full attention, and windows where configured",
        WORKS,
        _WITH_WINDOWS + layers_not_injected("SlidingWindowSpec"),
        f"{_trees_of('gemma3_text', 'gpt_oss', 'exaone4', 'mistral')}, {_WALKS}, {_INJECTED}",
    ),
    Class(
        "Latent attention, or full, and windows where configured",
        WORKS,
        _WITH_WINDOWS + layers_not_injected("SlidingWindowMLASpec"),
        f"{_trees_of('deepseek_v3')}, {_INJECTED}; latent attention with windows: no test",
    ),
    Class(
        "Transformers' own code, by upstream's Transformers backend",
        WORKS,
        "work from 0.30 on; " + _WITH_WINDOWS.removeprefix("work; ") + layers_not_injected("SlidingWindowSpec"),
        f"{_INJECTED}; with experts or images: no test",
    ),
    Class("Full attention", WORKS, WORKS, f"{_trees_of('qwen3_moe')}, {_WALKS}, {_INJECTED}"),
    Class("As the language model that the configuration names", "as with that one", "as with that one", ""),
)
(
    DRAFT,
    POOLING,
    ENCODER,
    DIFFUSION,
    UNSHARED,
    BOTH_WAYS,
    STATES,
    HYBRID,
    CHUNKS,
    WINDOWS,
    LATENTS,
    OTHERS,
    FULLS,
    NAMED,
) = CLASSES


def class_of(model: Architecture) -> Class:
    """The first class that applies."""
    applies: Sequence[tuple[bool, Class]] = (
        (model.tables == {"_SPECULATIVE_DECODING_MODELS"}, DRAFT),
        (model.is_pooling, POOLING),
        (model.is_encoder_decoder, ENCODER),
        (model.is_diffusion, DIFFUSION),
        (not model.kinds.issubset(KINDS.values()), UNSHARED),
        (model.reads_both_ways, BOTH_WAYS),
        ("is_attention_free" in model.traits, STATES),
        ("is_hybrid" in model.traits, HYBRID),
        (model.is_of_transformers, OTHERS),
        # What else it has is of its encoder.
        (model.has_named_language_model, NAMED),
        (CHUNK in model.kinds, CHUNKS),
        (LATENT in model.kinds, LATENTS),
        (WINDOW in model.kinds, WINDOWS),
    )
    return next((each for does_apply, each in applies if does_apply), FULLS)


def page(folder: Path) -> str:
    """The page as Markdown, of the vLLM in a folder."""
    models = Models(folder).architectures()
    of_classes: dict[Class, list[Architecture]] = {each: [] for each in CLASSES}
    for model in models:
        of_classes[class_of(model)].append(model)
    run, injected = _run_by_tests()
    counts = Counter(_outcome(class_of(model)) for model in models)
    drafts = len(of_classes[DRAFT])
    rows = [_row(each, of_classes[each], run | injected) for each in reversed(CLASSES)]
    lists = [_list(each, of_classes[each], run, injected) for each in reversed(CLASSES)]
    components = sum("supports_mrope" in model.traits and not model.is_pooling for model in models)
    return "".join([_head(_version(folder), len(models), drafts, counts), *rows, "\n", _components(components), *lists])


def _outcome(each: Class) -> str:
    if each in (DRAFT, NAMED):
        return "draft" if each is DRAFT else "named"
    return "refused" if each.hooks.startswith(REFUSED) else "work"


def _head(version: str, count: int, drafts: int, counts: Mapping[str, int]) -> str:
    return f"""\
# Models

Which architectures of vLLM {version} sequence hooks work with, on V1. `docs/tools/models.py` writes this page
from the registry and the code of the installed release, and a test compares them
(`mytests/v1/test_architectures.py`). Of one model, `python -m sequence_hooks check MODEL` says the same before anything
is loaded.

The registry has {count} architectures, of which {count - drafts} can be served by themselves. Hooks work with
{counts["work"]} of these, {counts["named"]} are as the language model that their configuration names, and
{counts["refused"]} are refused when the engine starts, by the message below.

- A class says which kinds of layers are in the code of its architectures and in all that it uses. A configuration may
  have fewer of them, and may give a window to all layers of any architecture (`sliding_window`).
- The code is read, not run: some architectures cannot be imported without a GPU, or without packages for their images.
  A test compares what is read with what vLLM says of all those that it can import.
- "Work" means that hooks have what such kinds of layers need. Tests run the architectures that the table names as run,
  each with several layers of each of its kinds; the others were not run, and the table says what no test reaches.
  [The self-check](install.md#does-it-work-on-mine) tells you of yours. With `kv_inject` each worker also tries its own
  layers when the engine starts, and refuses by name those whose keys cannot be moved.

| class | architectures | run by tests, or for example | hooks | with `kv_inject` | shown by |
| --- | --- | --- | --- | --- | --- |
"""


def _row(each: Class, models: Sequence[Architecture], tested: frozenset[str]) -> str:
    names = [model.name for model in models]
    shown = [name for name in names if name in tested]
    examples = ", ".join(f"`{name}`" for name in shown) or "none; " + ", ".join(f"`{name}`" for name in names[:3])
    cells = (each.title, str(len(names)), examples, _quoted(each.hooks), _quoted(each.injection), each.shown_by)
    return "| " + " | ".join(cells) + " |\n"


def _quoted(text: str) -> str:
    return re.sub(r"special_kwargs: .*", lambda found: f"`{found[0].removeprefix('special_kwargs: ')}`", text)


def _components(count: int) -> str:
    return f"""\
{count} architectures have positions with several components (M-RoPE). Their trees have images, and injected KV after
these: `mytests/v1/test_images.py`.

Below, architectures that tests run are bold.

"""


def _list(each: Class, models: Sequence[Architecture], run: frozenset[str], injected: frozenset[str]) -> str:
    def marked(name: str) -> str:
        return f"**{name}**" if name in run | injected else name

    return f"## {each.title}\n\n" + ", ".join(marked(model.name) for model in models) + ".\n\n"


def _run_by_tests() -> tuple[frozenset[str], frozenset[str]]:
    """The architectures that tests run, and those of them with injected KV."""
    known = import_module("transformers.models.auto.modeling_auto")
    names: Mapping[str, str] = {
        **known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        **known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    run = (("fuzz/architectures.py", "FIELDS"), ("harness/v1/vision_model.py", "VISION"))
    injected = (("v1/test_injection_on_models.py", "ARCHITECTURES"), ("v1/test_images.py", "INJECTED"))
    by_run, by_injected = (
        frozenset(names[each] for path, name in places for each in ("llama", *_texts_of(TESTS / path, name)))
        for places in (run, injected)
    )
    return by_run, by_injected


def _texts_of(path: Path, name: str) -> Iterator[str]:
    """The keys of a dict of a module, or the texts in another value."""
    for node in ast.parse(path.read_text()).body:
        targets: Iterable[ast.expr] = node.targets if isinstance(node, ast.Assign) else ()
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = node.value  # type: ignore[attr-defined]
            parts = value.keys if isinstance(value, ast.Dict) else ast.walk(value)
            yield from (str(each.value) for each in parts if isinstance(each, ast.Constant))


def _version(folder: Path) -> str:
    found = re.search(r"^__version__ = .*'(\d[\d.]*)", (folder / "_version.py").read_text(), flags=re.M)
    assert found is not None
    return found[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m docs.tools.models", description=__doc__)
    installed = Path(sysconfig.get_path("purelib")) / "vllm"
    parser.add_argument("--vllm", type=Path, default=installed, help="the package's folder (default: %(default)s)")
    PAGE.write_text(page(parser.parse_args(arguments).vllm))


if __name__ == "__main__":
    main()
