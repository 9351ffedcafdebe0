# SPDX-License-Identifier: Apache-2.0
"""Does this fork, with hooks off, give what pristine upstream gives? ``make check-upstream``."""
