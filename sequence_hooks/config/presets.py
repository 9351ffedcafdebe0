# SPDX-License-Identifier: Apache-2.0
"""Published notations by name: the fields of `SpecialKwargs` that each of them stands for."""

from collections.abc import Mapping
from typing import Any

from sequence_hooks.config.messages import abbreviated
from sequence_hooks.config.outline_prompt import HANDLER, TRIGGER

_BESIDE_A_POINT = ["\n\n", TRIGGER, *(f"\n{number}." for number in range(1, 11))]
"""What ends the expansion of a point: an empty line, the mark of an outline, or another point."""

FIELDS: dict[str, dict[str, Any]] = {
    "apr": {
        "handlers": {
            "<End Calling Sub Searches>": "sequence_hooks.protocols.apr.handler",
            "<Sub Searches>": "sequence_hooks.protocols.apr.guard",
        },
        "trigger_by": "text",
    },
    "asyncthink": {
        "handlers": {">": "sequence_hooks.protocols.asyncthink.handler"},
        "trigger_by": "text",
        "unjoined_at_end": "cancel",
    },
    "hpd": {
        "promise_token": "<FORK>",
        "block_on": "never",
        "child_context": "before_trigger",
        "child_prefix": "<CHILD>",
        "child_stop": "<|im_end|>",
        "child_merge_strategy": "sequence_hooks.protocols.hpd.join",
        "max_children": 1024,
        "max_running_children": 64,
        "max_tree_sequences": 1025,
    },
    "multiverse": {
        "handlers": {"</Goal>": "sequence_hooks.protocols.multiverse.handler"},
        "child_merge_strategy": "kv_inject",
        "position_rule": "overlap",
        "max_child_depth": 6,
        "max_children": 20,
        "max_tree_sequences": 1024,
    },
    "npr": {
        "handlers": {"</guideline>": "sequence_hooks.protocols.npr.handler"},
        "child_merge_strategy": "kv_inject",
        "position_rule": "overlap",
        "child_sampling_params": {"repetition_penalty": 1.02},
        "max_child_depth": 6,
        "max_tree_sequences": 1024,
    },
    "padoc": {"block_on": "never", "max_children": 255, "max_tree_sequences": 256, "merge_separator": ""},
    "parallel_r1": {
        "promise_token": "<Parallel>",
        "block_on": "promise",
        "children_per_promise": 2,
        "child_prefix": "<Path>",
        "child_stop": "</Path>",
        "child_sampling_params": {"temperature": 1.0},
        "child_merge_strategy": "sequence_hooks.protocols.parallel_r1.join",
    },
    "pasta": {
        "handlers": {"/>": "sequence_hooks.protocols.pasta.handler"},
        "sync_token": "<sync/>",
        "block_on": "sync",
        "trigger_by": "text",
    },
    "skeleton": {
        "handlers": dict.fromkeys(("\n", TRIGGER), HANDLER),
        "trigger_by": "text",
        "hooks_on_request": True,
        "child_sampling_params": {"max_tokens": 160, "stop": _BESIDE_A_POINT},
        "max_children": 10,
    },
    "threadweaver": {
        "handlers": {"</Outlines>": "sequence_hooks.protocols.threadweaver.handler"},
        "trigger_by": "text",
        "max_children": 50,
        "max_tree_sequences": 1024,
    },
}
"""The fields that each notation stands for, by its name, which is that of its module in `sequence_hooks.protocols`."""

ONE_TOKEN: dict[str, tuple[str, ...]] = {
    "hpd": ("<FORK>", "<CHILD>", "<|im_end|>"),
    "multiverse": ("<Goal>", "<Outline>", "</Goal>", "<Path>", "</Path>", "<Conclusion>"),
    "npr": ("<guideline>", "<plan>", "</guideline>", "<step>", "</step>", "<takeaway>"),
    "parallel_r1": ("<Parallel>", "</Parallel>", "<Path>", "</Path>", "<Summary>", "</Summary>"),
}
"""The tags that have to be one token each."""

REQUIRED: dict[str, dict[str, str]] = {
    "padoc": {"promise_token": "no public checkpoint tells the text of its fork token; give that of your model's"},
}
"""The fields that a protocol cannot stand for, and why a user has to give them."""

PROTOCOLS = tuple(FIELDS)

_INSTEAD = {
    "promise_token": "promise_token_id",
    "sync_token": "sync_token_id",
    "child_prefix": "child_prefix_token_ids",
}
"""Fields that a protocol gives, and the ones that a user may give instead."""


def missing_field(special_kwargs: Any) -> tuple[str, str] | None:
    """A field that the named protocol needs and that is not given, by itself or by its id, and the way out."""
    for name, way_out in REQUIRED.get(special_kwargs.protocol, {}).items():
        if getattr(special_kwargs, name) is None and getattr(special_kwargs, _INSTEAD[name]) is None:
            return name, f"{way_out}, or {_INSTEAD[name]}"
    return None


def fields_of(protocol: str) -> dict[str, Any]:
    """The fields that a protocol stands for.

    Raises:
        ValueError: there is no such protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"special_kwargs: protocol is {abbreviated(protocol)}; use one of {', '.join(PROTOCOLS)}")
    return dict(FIELDS[protocol])


def one_token_tags(special_kwargs: Any) -> list[str]:
    """The tags of the configured protocol that have to be one token each, but for those that a user has replaced."""
    if special_kwargs.protocol is None or special_kwargs.trigger_by == "text":
        return []
    fields = fields_of(special_kwargs.protocol)
    replaced = [value for name, value in fields.items() if getattr(special_kwargs, name) != value]
    return [tag for tag in ONE_TOKEN.get(special_kwargs.protocol, ()) if tag not in replaced]


def with_protocol(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields ``given``, and those of the protocol that they name, if any, which are not given."""
    protocol = given.get("protocol")
    if protocol is None:
        return dict(given)
    fields = fields_of(protocol)
    for name, instead in _INSTEAD.items():
        if given.get(instead):
            fields.pop(name, None)
    return {**fields, **given}
