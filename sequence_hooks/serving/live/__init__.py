# SPDX-License-Identifier: Apache-2.0
"""What runs at this moment: a page of the server, the routes that it reads, and the same in a terminal."""
