# SPDX-License-Identifier: Apache-2.0
"""What runs where requests come in: it replays what the engine did to trees, and tells the callers.

It owns texts, outputs, metrics and spans of trees, on a `DependencyManager` of its own. It must not decide anything
about a tree: it learns from the core's events what has happened.
"""
