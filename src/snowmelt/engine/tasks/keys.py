"""Which keys of a batch lie in a chunk. Bounds are opaque here: the keys tell which of them are above or below one."""

from __future__ import annotations

from snowmelt.databases.contract.keys import Keys, Mask
from snowmelt.errors import InvariantBroken
from snowmelt.planning.epochs import Span
from snowmelt.planning.facts import KeyEnds


def outside(keys: Keys | None, extent: KeyEnds | None) -> Mask:
    keys = _told(keys)
    return keys.all() if extent is None else keys.below(extent.least) | keys.above(extent.greatest)


def in_span(keys: Keys | None, span: Span, extent: KeyEnds | None) -> Mask:
    keys = _told(keys)
    inside = ~(outside(keys, extent) | keys.above(span.upto))
    return inside if span.above is None else inside & keys.above(span.above)


def _told(keys: Keys | None) -> Keys:
    if keys is None:
        raise InvariantBroken("keys are told apart by chunks that can't be")
    return keys
