# SPDX-License-Identifier: Apache-2.0
"""What is configured: `SpecialKwargs`, what its fields may be, and what a tokenizer makes of them.

It owns the checks of all values that an operator or a request gives, and the words in which they are refused. It must
not know what a handler does, nor trees, nor engines. What a published notation configures is in its protocol's module.
"""

from sequence_hooks.config.special_kwargs import SpecialKwargs

__all__ = ["SpecialKwargs"]
