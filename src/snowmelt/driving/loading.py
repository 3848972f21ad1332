"""How a starting driver folds the state of its pipeline: the newest summary, the intents and done records after it, and the chain of the
captured log from the end of the newest intent.

Another driver may trim records meanwhile. So a fold counts only if its summary is still the newest.
"""

from __future__ import annotations

from typing import Final

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.summary import restore
from snowmelt.driving.steps import DONES, INTENTS, LOG, SUMMARIES, Get, Newest, Steps
from snowmelt.errors import Corrupt, Unavailable
from snowmelt.relay.restored import needs_before, take_over
from snowmelt.relay.retention import Relay, SegmentRecord

_TRIES_MAX: Final = 100


def load() -> Steps[Ledger]:
    for _ in range(_TRIES_MAX):
        number = yield from Newest(SUMMARIES)
        found = (yield from Get(SUMMARIES, number)) if number else None
        if number and found is None:
            continue
        ledger = restore(found) if found is not None else Ledger()
        if (yield from _fold(ledger)) and (yield from _is_newest(number)):
            return ledger
    raise Unavailable("the pipeline's state changes faster than it can be read", detail=f"{_TRIES_MAX} tries")


def _fold(ledger: Ledger) -> Steps[bool]:
    """False: an intent follows one that is not done, so one of the two was put or trimmed meanwhile."""
    while (intent := (yield from Get(INTENTS, ledger.epoch + 1))) is not None:
        if ledger.open is not None:
            return False
        ledger.apply_intent(intent)
        done = yield from Get(DONES, ledger.epoch)
        if done is not None:
            ledger.apply_done(done)
    return True


def _is_newest(summary: int) -> Steps[bool]:
    there = summary == 0 or (yield from Get(SUMMARIES, summary)) is not None
    return there and (yield from Get(SUMMARIES, summary + 1)) is None


def take_over_log(ledger: Ledger) -> Steps[Relay]:
    """The chain after the record that the newest intent names, and that record too if the intent ends inside it."""
    chain: list[SegmentRecord] = []
    number = ledger.segment
    while (record := (yield from Get(LOG, number + 1))) is not None:
        chain.append(record)
        number += 1
    if ledger.segment and needs_before(chain, ledger.upto):
        before = yield from Get(LOG, ledger.segment)
        if before is None:
            raise Corrupt("a record of the relay is missing", detail=f"number {ledger.segment}")
        chain.insert(0, before)
    if not chain:
        return Relay(floor=ledger.upto)
    return take_over(chain, intent_upto=ledger.upto)
