"""Whether to publish an epoch's entry as the next snapshot of a lake table.

Each try judges the snapshot that it builds on, and publishing the next snapshot is an exclusive create. So no other commit can come
between. After a lost reply the same question tells whether the commit happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from snowmelt.commit.records import Entry, Intent
from snowmelt.errors import BEGIN_ANEW, Fenced, SourceDrift
from snowmelt.model.numbers import EpochNumber

NOT_KNOWN: Final = "it is not known whether an epoch is in the lake"


class Files(Enum):
    """Where an entry's files are, as far as the decision needs it."""

    REFERENCED = "referenced"
    """At least one is in the manifests of some snapshot or tag, not only of the newest: a compaction may have replaced it."""
    STAGED = "staged"
    """All exist, and no manifest has them."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What the lake's metadata says of a commit of ours."""

    epoch: EpochNumber
    identity: str
    snapshot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A lake table at its newest snapshot."""

    uuid: str
    buckets: int
    schema: int
    sequence_field: bool
    """The lake still merges rows by `_seq`."""
    snapshot: int
    marker: LastCommit | None
    """Our newest commit, also at or below the entry's base, as far back as snapshots exist."""
    whole: bool
    """No snapshot after that one is missing, or after the base where that is newer: no later commit of ours can be hidden."""
    files: Files


@dataclass(frozen=True, slots=True)
class PublishEpoch:
    """Publish as the snapshot after this one."""

    on: int


@dataclass(frozen=True, slots=True)
class EpochInLake:
    """The lake has the epoch already."""

    snapshot: int


def judge(intent: Intent, entry: Entry, view: View) -> PublishEpoch | EpochInLake:
    """What to do with `entry` of `intent`, given the lake table's current state."""
    _same_table(entry, view)
    marker = view.marker
    if marker is not None and marker.epoch == intent.epoch:
        if marker.identity == intent.identity:
            return EpochInLake(marker.snapshot)
        raise Fenced("another epoch of this number is in the lake", detail=f"{entry.target}: epoch {intent.epoch}")
    if marker is not None and marker.epoch > intent.epoch:
        raise Fenced("the lake is ahead", detail=f"{entry.target} has epoch {marker.epoch}, not {intent.epoch}")
    if marker is not None and marker.identity != entry.previous:
        # The store was lost or restored, or another program's commit replaced ours.
        raise SourceDrift(
            "a lake table does not have what the store says",
            detail=f"{entry.target}: our last commit there is epoch {marker.epoch}, {marker.identity}; expected {entry.previous or 'none'}",
            hint=f"was the state or the table restored? {BEGIN_ANEW}",
        )
    if not view.whole:
        # No metadata says any more whether it happened. The files tell, unless another program removed them.
        if view.files is Files.REFERENCED:
            return EpochInLake(view.snapshot)
        if entry.empties and not entry.files:
            raise _unknown(intent, entry, "snapshots were removed, and an emptying leaves no files")
    if view.files is Files.REFERENCED:
        raise _unknown(intent, entry, "its files are in the table, and no commit of ours says so")
    if entry.new_schema == view.schema and not entry.files and not entry.empties:
        return EpochInLake(view.snapshot)
    if view.files is Files.MISSING:
        raise _unknown(intent, entry, "staged files are gone")
    if entry.schema != view.schema:
        raise _reshaped(entry, view.schema)
    return PublishEpoch(view.snapshot)


def judge_schema(entry: Entry, schema: int, shape: bytes) -> bool:
    """Whether the entry's change of schema is still to do, when the table has `schema` with content `shape`."""
    if entry.new_schema is None:
        return False
    if schema == entry.schema != entry.new_schema:
        return True
    if schema == entry.new_schema and shape == entry.shape:
        return False
    raise _reshaped(entry, schema)


def check_start(target: str, marker: LastCommit | None, *, epoch: EpochNumber, identity: str) -> None:
    """Before a driver's first step: the lake must not know more than the store, whose newest intent is `epoch` with `identity`.

    A store that was lost, or restored from an older copy, would reuse numbers of epochs that the lake already has. Its commits would
    be taken for done, or its rows would lose against those of the lake.
    """
    if marker is None or marker.epoch < epoch or (marker.epoch == epoch and marker.identity == identity):
        return
    raise SourceDrift(
        "the lake is ahead of the store",
        detail=f"{target} has epoch {marker.epoch}, the store ends with {epoch}",
        hint=f"a state that was lost or restored can't continue with these lake tables; {BEGIN_ANEW}",
    )


def _same_table(entry: Entry, view: View) -> None:
    for what, is_now, expected in (
        ("its identity", view.uuid, entry.uuid),
        ("its number of buckets", view.buckets, entry.buckets),
        ("its sequence field", view.sequence_field, True),
    ):
        if is_now != expected:
            raise SourceDrift(
                f"a lake table lost {what}",
                detail=f"{entry.target}: {is_now}, expected {expected}",
                hint=f"was it made anew? {BEGIN_ANEW}",
            )


def _reshaped(entry: Entry, schema: int) -> SourceDrift:
    detail = f"{entry.target} has {schema}, expected {entry.schema}"
    if schema == entry.new_schema:
        detail = f"{entry.target} has another {schema} than ours"
    return SourceDrift("another program changed the schema of a lake table", detail=detail, hint=BEGIN_ANEW)


def _unknown(intent: Intent, entry: Entry, why: str) -> SourceDrift:
    return SourceDrift(
        NOT_KNOWN,
        detail=f"{entry.target}, epoch {intent.epoch}: {why}",
        hint=f"another program removed staged files, or snapshots that our consumer holds; {BEGIN_ANEW}",
    )
