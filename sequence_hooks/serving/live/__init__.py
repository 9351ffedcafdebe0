# SPDX-License-Identifier: Apache-2.0
"""What runs at this moment: a page of the server, the routes that it reads, and the same in a terminal.

It owns the values of one moment (`trees`) and both pictures of them. It must not keep state of its own between two
requests, nor write a tree; only `terminal` needs packages that a server does not have.
"""
