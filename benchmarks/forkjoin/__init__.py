# SPDX-License-Identifier: Apache-2.0
"""What hooks gain over every other way to do the same work: ``make bench``."""
