"""The relay as a new driver finds it in the durable records."""

from __future__ import annotations

from snowmelt.errors import Corrupt
from snowmelt.model.numbers import LogOffset
from snowmelt.relay.retention import Relay, SegmentRecord


def needs_before(chain: list[SegmentRecord], intent_upto: LogOffset) -> bool:
    """Whether the record that the newest intent names is part of what is kept, given those after it.

    If not it may have been deleted, and even been put again by a capture that does not know yet that it is over.
    """
    return not chain or chain[0].first > intent_upto


def take_over(chain: list[SegmentRecord], *, intent_upto: LogOffset) -> Relay:
    """The relay as a new driver finds it: the records of all generations, oldest first, as far as they are still there.

    The floor begins at the end of the newest intent, not at what is still there. A driver of an older generation may have
    closed that epoch and may delete what it covers at any later moment; it can't get any further. What is found broken here may have been
    changed by a newer driver meanwhile: a driver that stops on it reads the generation first.
    """
    relay = Relay()
    for record in chain:
        relay.apply(record)
    if chain and chain[0].first > intent_upto:
        raise Corrupt("the relay lacks log that was never read", detail=f"it begins at {chain[0].first}, the lake is at {intent_upto}")
    if relay.end < intent_upto:
        raise Corrupt("the relay ends before what was already read", detail=f"it ends at {relay.end}, the lake is at {intent_upto}")
    relay.raise_floor(intent_upto)
    return relay
