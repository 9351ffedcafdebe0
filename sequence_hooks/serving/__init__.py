# SPDX-License-Identifier: Apache-2.0
"""What a server says about trees over HTTP, whichever engine it serves: responses, routes and metrics.

It owns the shape of what is sent and of what is read: `trees` and `usage` complete the lines of a response,
`resume_routes` are for callers, and `live` is the page of what runs. It reads trees as values and asks an engine
through protocols, and must not write a tree, nor import an engine.
"""
