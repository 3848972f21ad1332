"""What our commits leave in a snapshot's properties: by it a driver tells what a lake table has.

A snapshot of our own maintenance carries those of our newest commit on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from snowmelt.commit.publish import LastCommit
from snowmelt.commit.records import Intent
from snowmelt.errors import Corrupt
from snowmelt.model.numbers import EpochNumber
from snowmelt.sinks.paimon.table import snapshot_numbers

_EPOCH, _IDENTITY, _SEQUENCE_MAX = "snowmelt.epoch", "snowmelt.identity", "snowmelt.sequence-max"
_ALL: Final = (_EPOCH, _IDENTITY, _SEQUENCE_MAX)


def properties_of(intent: Intent) -> dict[str, str]:
    return {_EPOCH: str(intent.epoch), _IDENTITY: intent.identity, _SEQUENCE_MAX: str(intent.sequence_max)}


def carried(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of our commit among a snapshot's properties."""
    return {name: properties[name] for name in _ALL if name in properties}


def marker_of(snapshot: Any) -> LastCommit | None:
    properties = snapshot.properties or {}
    if _EPOCH not in properties:
        return None
    try:
        return LastCommit(EpochNumber(int(properties[_EPOCH])), properties[_IDENTITY], snapshot.id)
    except (KeyError, ValueError) as error:
        raise Corrupt("a snapshot's properties can't be read", detail=f"snapshot {snapshot.id}") from error


def sequence_max_of(snapshot: Any) -> int:
    return int((snapshot.properties or {}).get(_SEQUENCE_MAX, "0"))


def newest_marked(table: Any) -> Any:
    """The newest snapshot that names a commit of ours, or None."""
    return next(marked_snapshots(table, sorted(snapshot_numbers(table), reverse=True)), None)


def marked_snapshots(table: Any, numbers: Iterable[int]) -> Iterator[Any]:
    manager = table.snapshot_manager()
    found = (manager.get_snapshot_by_id(number) for number in numbers)
    return (snapshot for snapshot in found if snapshot is not None and marker_of(snapshot) is not None)
