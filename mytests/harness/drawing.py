# SPDX-License-Identifier: Apache-2.0
"""What Hypothesis draws depends on a seed alone; importing this arranges it.

By default it also draws numbers that stand in any module that is imported, so that the same seed gives other examples
after other tests, and in a checkout with other code.
"""

from hypothesis.internal.conjecture import providers

providers.HypothesisProvider._local_constants = providers.Constants()  # type: ignore[method-assign, assignment]
