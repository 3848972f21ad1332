"""The state of all listeners, as a text in the record of a done epoch. Equal states have equal texts; an empty state is an empty text."""

from __future__ import annotations

import json
from typing import Any

from snowmelt.commit.listeners import Tagged
from snowmelt.commit.notices import ListenerProgress, Notices
from snowmelt.errors import Corrupt
from snowmelt.model.moment import TIME_MS_MAX
from snowmelt.model.numbers import EpochNumber


def write_state(tagged: Tagged, notices: Notices | None = None) -> str:
    found: dict[str, Any] = {"tags": tagged} if tagged else {}
    if notices is not None and notices.told:
        told = {name: [one.epoch, one.why] for name, one in notices.told.items()}
        found["notices"] = {"epoch": notices.epoch, "identity": notices.identity, "told": told}
    return json.dumps(found, sort_keys=True, separators=(",", ":")) if found else ""


def read_state(text: str) -> tuple[Tagged, Notices]:
    """The state in `done` or in a summary."""
    try:
        found = json.loads(text) if text else {"tags": {}}
        if not found or not found.keys() <= {"tags", "notices"}:
            raise ValueError
        return _tagged(found.get("tags", {})), _notices(found.get("notices"))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Corrupt("the state of the listeners can't be read", detail=f"{len(text)} characters", hint="is the state whole?") from None


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
