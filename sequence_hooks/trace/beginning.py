# SPDX-License-Identifier: Apache-2.0
"""Starts the recording of a run that `SpecialKwargs.record_to` asks for."""

from sequence_hooks.config import SpecialKwargs
from sequence_hooks.config.messages import abbreviated, abbreviated_error
from sequence_hooks.trace import recorder


def begin_recording(special_kwargs: SpecialKwargs, model: str) -> None:
    """Create the file of `SpecialKwargs.record_to`, to which each scheduler appends its events.

    Raises:
        ValueError: the file cannot be written.
    """
    path = special_kwargs.record_to
    assert path is not None
    try:
        recorder.begin(path, model, special_kwargs)
    except OSError as error:
        raise ValueError(
            f"special_kwargs: record_to is {abbreviated(path)}; give the path of a file that can be written "
            f"({abbreviated_error(error)})"
        ) from error
