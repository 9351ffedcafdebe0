# SPDX-License-Identifier: Apache-2.0
"""Which tree's sequence is admitted next: fair among requests, however many sequences each of them has.

Each request has a *share* of the rows: all of them, divided by the number of requests. The least key goes first:

    of a tree below its share  (priority, 0, 0, its turn)
    of one at its share        (priority, how many of its sequences run, 0, its turn)
    of a new request           (priority, 0, 0, how many arrived before it)

Among trees with the same key, those whose next sequence resumes go first, because a tree that ends frees what it holds.
The others follow in the order in which their next sequences were queued.

So a tree below its share goes before new requests. A tree at its share is admitted only if no new request waits, and
then the tree with the fewest running sequences goes first. A turn lasts for as many children as the share has rows;
then it is the turn of the requests that have arrived meanwhile. No request starves: turns are served in order, and a
running sequence eventually ends or blocks.

A tree's own sequence goes before its children, which wait in spawn order. A preempted sequence needs room for its whole
context, so it waits after these. The same holds among trees: the third number of a tree's key is 1 if only preempted
sequences of it are left to admit.

Children may run for long, so a request at the head of the queue does not wait for their end: after some steps, the
newest child of the tree with the most rows is preempted for it (`Patience`, `AdmissionOrder.tree_with_most_rows`).
Where KV is short, trees that have begun go first regardless of their shares, and requests have more patience
(`Shortage`).

Where KV is tight, the plug-in lets the oldest trees go before others (`sequence_hooks.admission.oldest`). Between trees
and new requests nothing changes.
"""
