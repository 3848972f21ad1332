"""The state of all listeners, as a text in the record of a done epoch. Equal states have equal texts; an empty state is an empty text."""

from __future__ import annotations

import json
from typing import Any, Final

from snowmelt.commit.done_partitions import Marked
from snowmelt.commit.listeners import Tagged
from snowmelt.commit.notices import ListenerProgress, Notices
from snowmelt.errors import Corrupt
from snowmelt.model.moment import TIME_MS_MAX
from snowmelt.model.numbers import EpochNumber
from snowmelt.model.partition import TIMED, Unit

_WRONG: Final = (ValueError, TypeError, KeyError, AttributeError)


def write_state(tagged: Tagged, notices: Notices | None = None, marked: Marked | None = None) -> str:
    found: dict[str, Any] = {"tags": tagged} if tagged else {}
    if marked is not None and marked.ends:
        found["partitions"] = [dict(marked.ends), dict(marked.exceptions)]
    if notices is not None and notices.told:
        told = {name: [one.epoch, one.why] for name, one in notices.told.items()}
        found["notices"] = {"epoch": notices.epoch, "identity": notices.identity, "told": told}
    return json.dumps(found, sort_keys=True, separators=(",", ":")) if found else ""


def read_state(text: str) -> tuple[Tagged, Notices]:
    """The state in `done` or in a summary."""
    try:
        found = _read(text)
        return _tagged(found.get("tags", {})), _notices(found.get("notices"))
    except _WRONG:
        raise _corrupt(text) from None


def read_marked(text: str) -> Marked:
    """Of the same state: which partitions are marked."""
    try:
        ends, exceptions = _read(text).get("partitions", ({}, {}))
        if not ends.keys() <= set(TIMED):
            raise ValueError
        return Marked({Unit(unit): end for unit, end in _tagged(ends).items()}, _tagged(exceptions))
    except _WRONG:
        raise _corrupt(text) from None


def _read(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text) if text else {"tags": {}}
    if not found or not found.keys() <= {"tags", "notices", "partitions"}:
        raise ValueError
    return found


def _corrupt(text: str) -> Corrupt:
    return Corrupt("the state of the listeners can't be read", detail=f"{len(text)} characters", hint="is the state whole?")


def _tagged(found: Any) -> Tagged:
    if not all(type(end) is int and 0 <= end <= TIME_MS_MAX for end in found.values()):
        raise ValueError
    return dict(found)


def _notices(found: Any) -> Notices:
    if found is None:
        return Notices()
    told = {name: ListenerProgress(_epoch(epoch), _text(why)) for name, (epoch, why) in found["told"].items()}
    return Notices(_epoch(found["epoch"]), _text(found["identity"]), told)


def _epoch(found: Any) -> EpochNumber:
    if type(found) is not int or found < 0:
        raise ValueError
    return EpochNumber(found)


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError
    return found
