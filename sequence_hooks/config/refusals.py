# SPDX-License-Identifier: Apache-2.0
"""The messages for everything that hooks do not work with.

An engine raises them when it starts, ``python -m sequence_hooks check`` reports them before that, and docs/models.md
says for all architectures what is refused.
"""

GENERATES = "use a model that generates"
NO_ENCODER = "use a model without an encoder"
ONE_BY_ONE = "use a model that samples one token at a time"


def refused(what: str, way_out: str) -> str:
    """The message for something that hooks do not work with."""
    return f"special_kwargs: sequence hooks do not work with {what}; {way_out}"


def not_injected(what: str, way_out: str = "use 'concatenate'") -> str:
    """The message for something with which no KV can be injected."""
    return f"special_kwargs: child_merge_strategy='kv_inject' does not work with {what}; {way_out}"


def not_shared(kind: str, layer: str | None = None) -> str:
    """The message for layers of a ``kind`` that keep what no child can share; ``layer`` is the first of them."""
    return (
        f"special_kwargs: layers of the model are of the kind {kind}{_for_example(layer)}, and what they keep a child "
        "cannot share; use a model whose layers have attention, windows or a recurrent state"
    )


def not_causal(layer: str | None = None) -> str:
    """The message for layers in which tokens of a prompt see those after them."""
    as_does = "" if layer is None else f", as {layer} does"
    return (
        f"special_kwargs: layers of the model read a prompt in both directions{as_does}, and after a join "
        "all of a context is the prompt; use a model whose tokens see only those before them"
    )


def layers_not_injected(kind: str, layer: str | None = None) -> str:
    """The message for layers that can be given no KV of another context."""
    return not_injected(
        f"layers of the kind {kind}{_for_example(layer)}: they keep nothing for each token of a context"
    )


def _for_example(layer: str | None) -> str:
    return "" if layer is None else f", as {layer} is"
