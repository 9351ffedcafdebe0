# SPDX-License-Identifier: Apache-2.0
"""Makes what Hypothesis draws depend on a seed alone, and not on numbers in modules that are imported."""

from hypothesis.internal.conjecture import providers

providers.HypothesisProvider._local_constants = providers.Constants()  # type: ignore[method-assign, assignment]
