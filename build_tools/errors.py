# SPDX-License-Identifier: Apache-2.0
"""The one error of this package."""


class SetupError(Exception):
    """Something that the user must change; its text is one line for standard error."""
