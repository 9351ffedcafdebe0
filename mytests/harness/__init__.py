# SPDX-License-Identifier: Apache-2.0
"""What tests share: engines that are stepped by hand, servers, models, handlers and references. No tests."""
