"""What an epoch does to each lake table: the entries of its intent.

Laws:
- A keyed table is emptied where its source was: emptied, made anew, or found again under a name that the lake has rows of.
- A change table is never emptied: there the log lane writes a row that says so (`rows.TRUNCATE`).
- A change of columns is behind everything else of its epoch. Whether the lake can hold it is asked before any task starts (`unfit`).
- A lake table whose source is set aside is left as it is.
- Files of chunks come first, then those of the log by range: a streaming reader of the lake sees them in this order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Reshape
from snowmelt.databases.contract import Database
from snowmelt.engine.driver.chunks import Chunks
from snowmelt.engine.driver.shapes import Shapes
from snowmelt.engine.tasks.log import Emptied, LogAnswer
from snowmelt.engine.tasks.rows import lake_schema
from snowmelt.errors import RECOPY, Corrupt, SourceDrift, TableStuck
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import Adopted, Found, Reborn, Reshaped, Truncated
from snowmelt.relay.retention import Relay
from snowmelt.sinks.contract import Sink


@dataclass(slots=True)
class _Work:
    table: TableId
    keyed: bool = True
    empties: tuple[str, ...] = ()
    schema: int | None = None
    anew: bool = False
    """All rows that the lake has are gone with this epoch, so that old files need not be read with the new columns."""
    files: list[str] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)


class Entries:
    """Builds them, for the thread that owns the machines."""

    def __init__(self, lake: Sink, ledger: Ledger, shapes: Shapes, chunks: Chunks, source: Database) -> None:
        self._lake = lake
        self._ledger = ledger
        self._shapes = shapes
        self._chunks = chunks
        self._source = source

    def of(self, plan: EpochPlan, answers: Iterable[LogAnswer]) -> tuple[Entry, ...]:
        """`TableStuck`: of one of them it can't be told."""
        work = self._facts(plan)
        for fact in plan.facts:
            if isinstance(fact, Adopted):
                staged = self._chunks.staged(fact.nonce)
                one = self._work(work, fact.incarnation.table)
                one.files += staged.files
                one.messages += staged.messages
        sources = {table.target: table.incarnation.table for table in self._ledger.tables} | {
            target: one.table for target, one in work.items()
        }
        for answer in sorted(answers, key=lambda answer: answer.message.writer):
            for file in answer.message.files:
                work.setdefault(file.target, _Work(sources[file.target])).files.append(file.name)
            for target, messages in answer.messages.items():
                work.setdefault(target, _Work(sources[target])).messages += messages
        entries = (self._entry(target, work[target]) for target in sorted(work))
        return tuple(entry for entry in entries if entry.files or entry.empties or entry.new_schema is not None)

    def unfit(self, plan: EpochPlan) -> list[TableStuck]:
        """Tables that the plan changes in a way which the lake can't take."""
        found: list[TableStuck] = []
        for target, one in self._facts(plan).items():
            try:
                self._change(target, one)
            except TableStuck as error:
                found.append(error)
        return found

    def _facts(self, plan: EpochPlan) -> dict[str, _Work]:
        """What the plan's facts alone do to lake tables."""
        work: dict[str, _Work] = {}
        untouched = plan.untouched(self._ledger.tables)
        for fact in plan.facts:
            if fact.incarnation.table in untouched:
                continue
            match fact:
                case Found(incarnation, target, keyed, schema):
                    one = work.setdefault(target, _Work(incarnation.table, keyed))
                    self._begin_anew(one, incarnation.table, schema, holds=target in self._ledger.last_commits)
                case Reborn(incarnation, _, schema):
                    self._begin_anew(self._work(work, incarnation.table), incarnation.table, schema, holds=True)
                case Truncated(incarnation):
                    one = self._work(work, incarnation.table)
                    one.empties = (str(incarnation.table),) if one.keyed else ()
                case Reshaped(incarnation, _, schema):
                    self._work(work, incarnation.table).schema = schema
                case _:
                    pass
        return work

    def emptied(self, plan: EpochPlan, relay: Relay) -> tuple[Emptied, ...]:
        """The change tables that are to say that their sources were emptied, where and when."""
        found: list[Emptied] = []
        untouched = plan.untouched(self._ledger.tables)
        for fact in plan.facts:
            if fact.incarnation.table in untouched:
                continue
            match fact:
                case Found(incarnation, target, False, _, at) if target in self._ledger.last_commits:
                    found.append(Emptied(incarnation.table, target, at, relay.time_at(at) or 0))
                case Reborn(incarnation, at) | Truncated(incarnation, at):
                    table = self._ledger.tables.get(incarnation.table)
                    if table is not None and not table.keyed:
                        found.append(Emptied(incarnation.table, table.target, at, relay.time_at(at) or 0))
                case _:
                    pass
        return tuple(found)

    def _work(self, work: dict[str, _Work], name: TableId) -> _Work:
        table = self._ledger.tables.get(name)
        if table is None:
            raise SourceDrift("a table that is not known changes", detail=str(name))
        return work.setdefault(table.target, _Work(name, table.keyed))

    def _begin_anew(self, one: _Work, name: TableId, schema: int, *, holds: bool) -> None:
        one.schema, one.anew = schema, one.keyed
        if one.keyed and holds:
            one.empties = (str(name),)

    def _change(self, target: str, one: _Work) -> Reshape | None:
        """What becomes of a lake table's columns, if the lake can take all that happens to it."""
        if one.empties and not self._lake.empties:
            raise one.table.stuck(
                "a table was emptied or made anew, and its target can't be emptied",
                detail=f"{one.empties[0]} into {target}",
                hint="exclude it; or begin with a new state, and with another table for it",
            )
        return self._reshape(target, one)

    def _entry(self, target: str, one: _Work) -> Entry:
        try:
            state = self._lake.describe(target)
        except (SourceDrift, Corrupt) as error:
            raise one.table.stuck(error.fact, detail=error.detail, hint=RECOPY) from error
        change = self._change(target, one)
        try:
            preface = self._lake.preface(target)
        except SourceDrift as error:
            raise one.table.stuck(error.fact, detail=error.detail, hint=error.hint) from error
        return Entry(
            target=target,
            uuid=state.identity,
            buckets=state.buckets,
            schema=state.schema,
            new_schema=None if change is None else change.schema,
            base=state.progress,
            empties=one.empties,
            files=tuple(one.files),
            messages=(*preface, *one.messages),
            previous=self._ledger.last_commits.get(target, ""),
            shape=b"" if change is None else change.content,
        )

    def _reshape(self, target: str, one: _Work) -> Reshape | None:
        if one.schema is None:
            return None
        shape = self._shapes.of(one.schema)
        columns = lake_schema(shape.table, self._source, keyed=one.keyed)
        try:
            return self._lake.reshape(target, columns, shape.table.key if one.keyed else (), dict(shape.renamed), emptied=one.anew)
        except (SourceDrift, Corrupt) as error:
            statement = f"; the statement was {shape.statement}" if shape.statement else ""
            raise one.table.stuck(error.fact, detail=f"{error.detail}{statement}", hint=error.hint) from error
