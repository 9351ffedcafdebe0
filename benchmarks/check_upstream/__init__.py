# SPDX-License-Identifier: Apache-2.0
"""Does this fork, with hooks off, produce what pristine upstream produces? ``make check-upstream``."""
