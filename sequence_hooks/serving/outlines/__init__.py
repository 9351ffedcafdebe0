# SPDX-License-Identifier: Apache-2.0
"""A chat answer whose middle is decoded side by side (`sequence_hooks.protocols.skeleton`), for whoever asks for one.

    requests   what a request asks for, and what the engine is asked instead
    answer     the engine's outputs of one request, as its reader gets them; whether it is an outline at all
    reader     what one choice tells next, by tokens
    tape       tokens that are told, and their text, up to the first stop

Nothing but time tells such an answer from an ordinary one: a stream joins up to the answer, and what is said is never
taken back.
"""
