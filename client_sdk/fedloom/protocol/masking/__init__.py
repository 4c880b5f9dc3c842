"""Masking sessions: the server learns the sum of their updates, and nothing else.

The members of a session mask their updates so that the masks cancel in the sum. A name is imported
when it is first used. Both ends use the same functions; nothing here does I/O.

encoding    hashes, bitmaps and ids
core        what of a task all members must agree on
terms       a try at masking a round, and the floors of a device's owner
adverts     signed public keys, and their checks; draw and roster make sessions of them
keys        a member's secrets, and the keys that follow from them
shamir      secret sharing; shares and dealing encrypt shares for peers
body        integers of the sum as bytes; streams adds masks to them
member      the device's side, a state machine
survivors   the sets that members agree on, and what they reveal
recovery    the server's side: seeds from shares, faults, masks to take off

References:
    Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (2017).
"""

from fedloom.strategies.lazy_imports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
