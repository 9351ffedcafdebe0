# SPDX-License-Identifier: Apache-2.0
"""Published notations for parallel decoding, as configurations of the sequence hooks.

Each module says which tokens its notation needs (every tag one token of the model), and has a function
``special_kwargs`` that makes the configuration for a tokenizer. `docs/extending.md` explains them.
"""
