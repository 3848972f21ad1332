"""The pipeline's records in its store, by kind; `driving.loading` folds them.

    owner/<n>        whose records these are, and where they belong; the newest counts; never trimmed
    generation/<g>   the drivers; never trimmed
    intent/<n>       epoch n
    done/<n>         epoch n is in the lake
    summary/<k>      the fold up to some done epoch; the newest three are kept
    relay/<k>        the relay's chain
    shape/<k>        what a schema number stands for
    held/<k>         a prepared transaction that is held aside (`engine.log.prepared`)
    sign/<k>         signs of life, for `status`; the newest two are kept (`signs`)
    log/<k>          in a bucket: a segment of the log (`engine.log.storage`)

A record that is missing or broken while loading may have been trimmed by a newer driver meanwhile. So before such an error the generation
is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Done, Intent
from snowmelt.commit.summary import Summary
from snowmelt.databases.contract.tables import SourceTables, TableShape
from snowmelt.driving.loading import load, take_over_log
from snowmelt.driving.steps import Get, Newest, Put, Request, Trim, perform
from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken, SourceDrift
from snowmelt.model.numbers import EpochNumber
from snowmelt.relay.retention import Relay, SegmentRecord
from snowmelt.store.contract import Store, numbered
from snowmelt.store.numbered import Lost, newest
from snowmelt.store.records import RecordKind, delete_records, get_record, settle_record


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a table at one place of the log. A schema number stands for it."""

    table: TableShape
    renamed: tuple[tuple[str, str], ...] = ()
    """Old names of columns and their new ones, if a statement made this shape from the one before; an empty new name: dropped."""
    statement: str = ""
    """The statement's text, for an error; empty if the shape is the catalogue's."""


@dataclass(frozen=True, slots=True)
class RecordedShape:
    """A `Shape` in its record. The database encodes the table."""

    database: str
    """The kind of database."""
    table: bytes
    renamed: tuple[tuple[str, str], ...]
    statement: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The pipeline that a store belongs to, the server whose log its numbers count, and the folder or bucket that it is in."""

    pipeline: str
    server: str
    place: str


OWNER: Final = RecordKind("owner", 2, Owner)
INTENT: Final = RecordKind("intent", 3, Intent)
DONE: Final = RecordKind("done", 1, Done)
SUMMARY: Final = RecordKind("summary", 2, Summary)
SEGMENT_RECORD: Final = RecordKind("sealed", 7, SegmentRecord)
SHAPE: Final = RecordKind("shape", 2, RecordedShape)
_KINDS: Final[Mapping[str, RecordKind[Any]]] = {"intent": INTENT, "done": DONE, "summary": SUMMARY, "relay": SEGMENT_RECORD}
"""By the names that the steps of `driving` use."""


class State:
    """The records of one pipeline."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def bind(self, owner: Owner, *, moves: bool = False, adopt: bool = False) -> Owner:
        """Make the store this pipeline's, or refuse if it is another's. Call it before a generation is taken, so that a mistake fences no
        driver. `moves`: the pipeline may continue with another server; the captured log then shows which. `adopt`: the state may have been
        moved here. Returns the owner that began it."""
        number, found = self._owner()
        if found is None:
            result = settle_record(self.store, numbered("owner", 1), OWNER, owner)
            number, found = 1, result.value if isinstance(result, Lost) else owner
        self._check_owner(found, owner, moves=moves, adopt=adopt)
        if found.place != owner.place:
            # Two drivers that adopt it at once have the same place, and write the same.
            settle_record(self.store, numbered("owner", number + 1), OWNER, replace(found, place=owner.place))
        return found

    def check_owner(self, owner: Owner, *, moves: bool = False, adopt: bool = False) -> None:
        """Raise if `bind` would refuse. Writes nothing."""
        found = self._owner()[1]
        if found is not None:
            self._check_owner(found, owner, moves=moves, adopt=adopt)

    def _owner(self) -> tuple[int, Owner | None]:
        number = newest(self.store, "owner", since=1) or 0
        return number, get_record(self.store, numbered("owner", number), OWNER) if number else None

    @staticmethod
    def _check_owner(found: Owner, owner: Owner, *, moves: bool, adopt: bool) -> None:
        if found.pipeline != owner.pipeline:
            raise InvalidConfig(
                "the state is another pipeline's",
                detail=f"it was begun by {found.pipeline}, this is {owner.pipeline}",
                hint="give this pipeline a state of its own, or the name that it had",
            )
        if found.server != owner.server and not moves:
            raise SourceDrift(
                "the state is of another server",
                detail=f"it was begun with {found.server}, this is {owner.server}",
                hint="point the pipeline at the server that it was started with, set failover: gtid, or begin with a new state",
            )
        # A copy of a state would write into the lake tables of its original.
        if found.place != owner.place and not adopt:
            raise InvalidConfig(
                "the state belongs elsewhere: was it moved or copied?",
                detail=f"it was begun at {found.place}, this is {owner.place}",
                hint="if it was moved, start once with `snowmelt run --adopt-state`. If it is a copy, run the original: two pipelines that "
                "write into the same lake tables spoil them; --adopt-state is right only if the original never runs again",
            )

    @property
    def begun(self) -> bool:
        """Whether capture has begun. The chain's newest record is never deleted."""
        return bool(self.store.numbers("relay"))

    def act(self, request: Request[Any]) -> Any:
        """Do what steps ask of the store (`driving.steps`)."""
        match request:
            case Newest(kind):
                return newest(self.store, kind.name, since=1) or 0
            case Get(kind, number):
                return get_record(self.store, numbered(kind.name, number), _KINDS[kind.name])
            case Put(kind, number, value):
                result = settle_record(self.store, numbered(kind.name, number), _KINDS[kind.name], value)
                return result.value if isinstance(result, Lost) else value
            case Trim(kind, below):
                over = (number for number in sorted(self.store.numbers(kind.name)) if number < below)
                return delete_records(self.store, (numbered(kind.name, number) for number in over))
            case _:
                raise InvariantBroken("steps ask the store for what it does not do", detail=type(request).__name__)

    def load(self) -> Ledger:
        """The ledger, by the records."""
        return perform(load(), self.act)

    def take_over_relay(self, ledger: Ledger) -> Relay:
        """The chain from where the newest intent ends."""
        return perform(take_over_log(ledger), self.act)

    def segment_record(self, number: int) -> SegmentRecord | None:
        """A record of the chain."""
        return get_record(self.store, numbered("relay", number), SEGMENT_RECORD)

    def put_segment_record(self, record: SegmentRecord) -> SegmentRecord:
        """Put the next record of the chain. The record that is there afterwards, perhaps another driver's."""
        result = settle_record(self.store, numbered("relay", record.number), SEGMENT_RECORD, record)
        return result.value if isinstance(result, Lost) else record

    def put_intent(self, intent: Intent) -> bool:
        return not isinstance(settle_record(self.store, numbered("intent", intent.epoch), INTENT, intent), Lost)

    def intent(self, epoch: EpochNumber) -> Intent | None:
        return get_record(self.store, numbered("intent", epoch), INTENT)

    def trim_relay(self, numbers: list[int]) -> None:
        delete_records(self.store, (numbered("relay", number) for number in numbers))

    def put_shape(self, number: int, shape: Shape) -> None:
        recorded = RecordedShape(shape.table.kind, shape.table.record(), shape.renamed, shape.statement)
        if isinstance(settle_record(self.store, numbered("shape", number), SHAPE, recorded), Lost):
            raise Corrupt("a schema number stands for two shapes", detail=f"number {number}")

    def shape(self, number: int, source: SourceTables) -> Shape:
        """The shape of a number, decoded by the database that wrote it."""
        found = get_record(self.store, numbered("shape", number), SHAPE)
        if found is None:
            raise Corrupt("the shape of a table is missing", detail=f"number {number}", hint="is the state whole?")
        if found.database != source.kind:
            raise Corrupt("a table's shape is of another kind of database", detail=f"{found.database}, not {source.kind}")
        return Shape(source.shape_of(found.table), found.renamed, found.statement)

    def shapes(self) -> list[int]:
        """Numbers that have a record. One that was just put may be missing from the list."""
        return self.store.numbers("shape")

    def trim_shapes(self, numbers: list[int]) -> None:
        delete_records(self.store, (numbered("shape", number) for number in numbers))
