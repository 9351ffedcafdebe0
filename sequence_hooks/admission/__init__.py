# SPDX-License-Identifier: Apache-2.0
"""Which tree's sequence is admitted next: fair among requests, however many sequences each of them has.

Each request has a *share* of the rows: all of them, divided by the number of requests. The least key goes first:

    of a tree below its share  (priority, 0, 0, its turn)
    of one at its share        (priority, how many of its sequences run, 0, its turn)
    of a new request           (priority, 0, 0, how many arrived before it)

Of trees with the same key, the one goes first whose sequence has waited for longer, after those that have begun and go
on: what they hold is free again when they end.

So trees that have begun go first within their shares, and beyond these only if no new request waits; then whoever has
least. A turn lasts for as many children as the share has rows; then it is the turn of the requests that have arrived
meanwhile. No request starves: turns are served in order, and a running sequence eventually ends or blocks.

A tree's own sequence goes before its children, which wait in spawn order. What was preempted, and needs room for all of
its context, waits after these; among trees, too, so the third number of a tree's key is 1 if it has nothing else.

Children may run for long, so a request that has waited for some steps at the head does not wait for their end: the
newest child of the tree with most rows is preempted for it (`Patience`, `AdmissionOrder.tree_with_most_rows`). Where KV
is short, trees that have begun go first whatever they have, and the request has more patience (`Shortage`).

Where KV is tight, the plug-in lets the oldest trees go before others (`sequence_hooks.admission.oldest`). Between trees
and new requests nothing changes.
"""
