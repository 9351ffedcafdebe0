# SPDX-License-Identifier: Apache-2.0
"""The checks, each of which gives one line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequence_hooks.check.files import ModelFiles
from sequence_hooks.check.layers import CHUNK, STATE, WINDOW, Layers
from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.inert import idle_warning
from sequence_hooks.config.notations import notation_of
from sequence_hooks.config.refusals import layers_not_injected
from sequence_hooks.config.tokens import resolve
from sequence_hooks.handlers.builtin import make_handlers
from sequence_hooks.handlers.triggers import Triggers
from sequence_hooks.text.encoding import single_token
from sequence_hooks.text.messages import abbreviated, describe_error


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    name: str
    fits: bool
    says: str


def findings(special_kwargs: SpecialKwargs, files: ModelFiles) -> Iterator[Finding]:
    """Check all that can be told without an engine. What depends on a check that fails is left out."""
    protocol = special_kwargs.protocol
    named = "" if protocol is None else f"protocol {protocol}: {', '.join(notation_of(protocol).fields)}"
    yield Finding("fields", True, named or "valid")
    yield layers_finding(files.layers, special_kwargs.injects_kv)
    try:
        resolved = resolve(special_kwargs, lambda: files.tokenizer, files.vocab_size)
    except ValueError as error:
        yield Finding("tokens", False, str(error))
        return
    yield Finding("tokens", True, _tokens(resolved, files))
    try:
        handlers = make_handlers(resolved, files.tokenizer)
        triggers = Triggers(handlers, files.tokenizer)
    except ValueError as error:
        yield Finding("handlers", False, str(error))
        return
    names = ", ".join(f"{_shown(key, files)}: {type(handler).__name__}" for key, handler in handlers.items())
    yield Finding("handlers", True, f"{names}; {len(triggers.candidates)} tokens can fire one")
    yield _limits(resolved, files)
    yield _texts(files, handlers)
    yield _template(files, [key for key in handlers if isinstance(key, int)])
    if warning := idle_warning(resolved):
        yield Finding("use", False, warning)


def layers_finding(layers: Layers, injects_kv: bool) -> Finding:
    """Whether hooks work with these layers on a current vLLM, with the plug-in, and with what options."""
    kinds = f"{', '.join(layers.kinds)} ({layers.source})"
    if refusal := layers.refusal or (_refusal_to_inject(layers.kinds) if injects_kv else None):
        return Finding("layers", False, f"{kinds}: {refusal}")
    notes = []
    if injects_kv and not {WINDOW, CHUNK}.isdisjoint(layers.kinds):
        notes.append("with kv_inject those with a window keep the KV of the whole context")
    if STATE in layers.kinds and layers.kinds != (STATE,):
        notes.append("up to vLLM 0.31 it may need mamba_cache_mode='align'")
    return Finding("layers", True, "; ".join([f"{kinds}: work with the plug-in", *notes]))


def _refusal_to_inject(kinds: Sequence[str]) -> str | None:
    if STATE in kinds:
        return layers_not_injected("MambaSpec")
    if kinds == (WINDOW,):
        return layers_not_injected("SlidingWindowSpec")
    return layers_not_injected("ChunkedLocalAttentionSpec") if kinds == (CHUNK,) else None


def _tokens(resolved: SpecialKwargs, files: ModelFiles) -> str:
    given: dict[str, Iterable[int | str | None]] = {
        "promise": (resolved.promise_token_id, resolved.promise_token),
        "sync": (resolved.sync_token_id, resolved.sync_token),
    }
    parts = [f"{name} {_shown(key, files)}" for name, keys in given.items() for key in keys if key is not None]
    parts += [f"hook {_shown(key, files)}" for key, _ in resolved.named_handlers]
    if any(resolved.child_prefixes):
        prefixes = dict.fromkeys(resolved.child_prefixes)
        parts.append(f"children begin with {', '.join(_text(prefix, files) for prefix in prefixes)}")
    overrides = resolved.child_sampling_params
    if isinstance(overrides, Mapping):
        ends = [_shown(token_id, files) for token_id in overrides.get("stop_token_ids") or ()]
        ends += [repr(text) for text in overrides.get("stop") or ()]
        parts += [f"children end at {', '.join(ends)}"] if ends else []
    return "; ".join(parts)


def _limits(resolved: SpecialKwargs, files: ModelFiles) -> Finding:
    longest = max(map(len, resolved.child_prefixes))
    limits = f"depth {resolved.max_child_depth}, {resolved.max_children} children at once"
    if resolved.max_running_children is not None:
        limits += f", of which {resolved.max_running_children} run"
    if files.max_len is None:
        return Finding("limits", True, f"{limits}; the model's length is unknown")
    says = f"{limits}; contexts of {files.max_len} tokens, a child's prefix has up to {longest}"
    return Finding("limits", longest < files.max_len, says)


def _texts(files: ModelFiles, hooks: Iterable[int | str]) -> Finding:
    tokens = [single_token(key, files.tokenizer) if isinstance(key, str) else key for key in hooks]
    hidden = [_shown(token_id, files) for token_id in tokens if token_id is not None and token_id in files.hidden]
    if not hidden:
        return Finding("texts", True, "all hook tokens are in the texts that clients get")
    return Finding("texts", True, f"{', '.join(hidden)} are in texts only with skip_special_tokens=false")


def _template(files: ModelFiles, hooks: Sequence[int]) -> Finding:
    if not files.has_chat_template:
        return Finding("chat", True, "no chat template: use completions, or give vLLM --chat-template")
    answer = "".join(files.tokenizer.decode([token_id], skip_special_tokens=False) for token_id in hooks)
    try:
        kept = files.chat([{"role": "user", "content": "x"}, {"role": "assistant", "content": answer}])
    except Exception as error:
        return Finding("chat", False, f"the chat template cannot be rendered: {describe_error(error)}")
    lost = [_shown(token_id, files) for token_id in hooks if token_id not in kept]
    if lost:
        return Finding("chat", True, f"the chat template leaves {', '.join(lost)} of earlier answers out")
    return Finding("chat", True, "the chat template keeps the hook tokens of earlier answers; prompts fire no hook")


def _shown(key: int | str, files: ModelFiles) -> str:
    return f"text {abbreviated(key)}" if isinstance(key, str) else f"{_text((key,), files)} ({key})"


def _text(token_ids: Iterable[int], files: ModelFiles) -> str:
    decode: Any = files.tokenizer.decode
    return repr(decode(list(token_ids), skip_special_tokens=False))
