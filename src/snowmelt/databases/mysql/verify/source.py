"""The database's side: exact reads whose rows are hashed by the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from snowmelt.databases.contract.tables import ReadMark
from snowmelt.databases.mysql.answers import number, number_or_none, unexpected
from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.read.bounds import from_table, key_condition, plan_chunks
from snowmelt.databases.mysql.read.keys import chunked
from snowmelt.databases.mysql.read.marks import GtidMark, Mark
from snowmelt.databases.mysql.read.reads import ExactRead, Method, read_extent, read_method, shown_place
from snowmelt.databases.mysql.read.resultset import ReadCounters, select
from snowmelt.databases.mysql.types.columns import MySqlColumn, MySqlTable, TypeOptions
from snowmelt.databases.mysql.verify.log import read_changes
from snowmelt.errors import InvalidConfig, SourceDrift
from snowmelt.model.position import Position

if TYPE_CHECKING:
    from snowmelt.databases.mysql.verify.comparing import MySqlComparing
from snowmelt.databases.comparing.classes import RANGE_ROWS, Classes, Parting, Sums, remainders_for
from snowmelt.databases.comparing.digests import Hash, Hashes, from_raw, hashes
from snowmelt.databases.comparing.rows import Detail, RowHashes, SourceRows, text_of
from snowmelt.databases.mysql.verify.forms import MySqlRowForms, float_bits, is_summed, sql_digest, sql_float, sql_text

_PLAIN = TypeOptions()
_ABC = "'abc'"
_FILTERED_MAX = 2_000
"""How many remainders or keys one statement names; more of them are sorted out here."""


def choose_hash(session: Session) -> Hash:
    """The first function that the server has. What it says of itself is not asked: a build or a policy may lack one."""
    known = {Hash.MD5: "900150983cd24fb0d6963f7d28e17f72", Hash.SHA256: "ba7816bf8f01cfea414140de5dae2223"}
    for how, digest in known.items():
        try:
            if str(session.value(f"SELECT {how.sql(_ABC)}")) == digest:
                return how
        except (InvalidConfig, SourceDrift):
            # It does not know the function.
            continue
    raise InvalidConfig("the server can't hash rows", detail="it has neither MD5() nor SHA2()", hint="enable one of them")


class SourceTable:
    """One table of the database. Opens a session for each read."""

    def __init__(self, comparing: MySqlComparing, table: MySqlTable, *, keyed: bool) -> None:
        self._comparing = comparing
        self._options = comparing.options
        self._table = table
        self._keyed = keyed
        forms = MySqlRowForms(table.columns, table.key if keyed else (), comparing.types, comparing.how, named=table.key)
        self._forms = forms
        self._identity = comparing.server.identity
        self._era = comparing.era
        self._key = sql_digest(forms.key, forms.options, forms.how) if forms.key else ""
        self._row = sql_digest(forms.columns, forms.options, forms.how)

    @property
    def forms(self) -> MySqlRowForms:
        return self._forms

    def changes(self, after: Position, upto: Position) -> RowHashes:
        one = self._comparing
        names = one.ignores_case
        return read_changes(
            one.options, one.server, self._table, self._forms, one.types, after, upto, keyed=self._keyed, lower_case_names=names
        )

    def part(self) -> Parting:
        """Look for ranges and their number; sizes are estimates, which nothing relies on."""
        with Session(self._options) as session:
            if chunked(self._table):
                extent, _ = read_extent(session, self._table, identity=self._identity, era=self._era)
                chunks = list(plan_chunks(session, self._table, extent, rows_per_chunk=RANGE_ROWS))
                bounds = tuple(int(chunk.high[0]) for chunk in chunks[:-1] if chunk.high is not None)
                rows = min(RANGE_ROWS, self._estimate(session)) if not bounds else RANGE_ROWS
                return Parting(self._table.key[0], bounds, remainders_for(rows))
            return Parting(None, (), remainders_for(self._estimate(session)))

    def _estimate(self, session: Session) -> int:
        where = "table_schema = %s AND table_name = %s"
        name = [self._table.id.database, self._table.id.name]
        return session.value(f"SELECT table_rows FROM information_schema.tables WHERE {where}", name, kind=number_or_none) or 0

    def sums(self, parting: Parting, watch: Callable[[int, int], None]) -> tuple[Sums, list[ReadMark]]:
        """The sums of all classes, by one short exact read for each range."""
        sums, marks = Sums.zero(parting.count), list[ReadMark]()
        ranges = len(parting.bounds) + 1
        with Session(self._options) as session:
            for index in range(ranges):
                with self._exact(session) as read:
                    where = self._range(parting, index)
                    if self._forms.floats:
                        for rows in self._rows(session, where):
                            sums.add(_class(parting, index, rows.keys), rows.rows)
                    else:
                        self._sum(session, parting, index, where, sums)
                    read.finish()
                marks.append(read.mark)
                watch(index + 1, ranges)
        return sums, marks

    def _sum(self, session: Session, parting: Parting, index: int, where: str, sums: Sums) -> None:
        named = _number(self._key or self._row)
        sql = (
            f"SELECT {named} % {parting.remainders} AS class, COUNT(*), SUM({_number(self._row)}) "
            f"FROM {from_table(session, self._table)} WHERE {where} GROUP BY class"
        )
        for remainder, count, total in session.query(sql, columns=(number_or_none, number, number_or_none)):
            if remainder is None:
                hint = "raise max_allowed_packet"
                raise InvalidConfig("the server can't hash a row", detail=str(self._table.id), hint=hint)
            if not 0 <= remainder < parting.remainders or not 0 <= count < 2**63:
                raise unexpected("a sum of no class of rows, or of more rows than there are")
            at = index * parting.remainders + remainder
            sums.counts[at] = count
            # Rows that the server can't hash have no share in its sum, so that they differ, and are compared one by one.
            sums.sums[at] = np.uint64((total or 0) % 2**64)

    def rows(self, parting: Parting, classes: Classes) -> SourceRows:
        """The rows of some classes, by one exact read."""
        parts = []
        with Session(self._options) as session:
            shown = shown_place(session, self._era) if read_method(session) is Method.GTID else None
            with self._exact(session) as read:
                for index, remainders in parting.ranges(classes).items():
                    where = self._range(parting, index)
                    if not self._forms.floats and len(remainders) <= min(_FILTERED_MAX, parting.remainders // 2):
                        named = f"{_number(self._key or self._row)} % {parting.remainders}"
                        where = f"({where}) AND {named} IN ({', '.join(map(str, remainders))})"
                    wanted = np.array(remainders, np.int64) + index * parting.remainders
                    for rows in self._rows(session, where):
                        parts.append(rows.where(np.isin(_class(parting, index, rows.keys), wanted)))
                read.finish()
        mark = read.mark
        low = shown if isinstance(mark, GtidMark) and shown is not None else mark.high
        return SourceRows(RowHashes.joined(parts), low, mark.high)

    def details(self, keys: Hashes) -> tuple[dict[int, Detail], Mark]:
        """Some rows by name, as far as they are there."""
        forms, found = self._forms, {}
        summed = [column for column in forms.columns if is_summed(column)]
        items = [f"UNHEX({sql_digest([column], forms.options, forms.how)})" for column in summed]
        items += [f"CAST({sql_text(column, forms.options, forms.how)} AS BINARY)" for column in forms.named if is_summed(column)]
        columns = [MySqlColumn(name=f"d{index}", base="varbinary") for index in range(len(items))]
        where = "TRUE"
        if not any(not is_summed(column) for column in forms.key or forms.columns):
            where = f"{_number(self._key or self._row)} IN ({', '.join(map(str, keys.tolist()))})"
        with Session(self._options) as session, self._exact(session) as read:
            for batch, rows in self._select(session, where, items, columns):
                for at in np.flatnonzero(np.isin(rows.keys, keys)).tolist():
                    found[int(rows.keys[at])] = self._detail(batch, rows, at, summed)
            read.finish()
        return found, read.mark

    def _detail(self, batch: pa.RecordBatch, rows: RowHashes, at: int, summed: list[MySqlColumn]) -> Detail:
        digests = {column.name: batch.column(f"d{index}")[at].as_py() for index, column in enumerate(summed)}
        key_at, key = len(summed), []
        for column in self._forms.named:
            if is_summed(column):
                key.append(text_of(batch.column(f"d{key_at}")[at].as_py()))
                key_at += 1
        for index, column in enumerate(self._forms.floats):
            value = batch.column(f"f{index}").slice(at, 1)
            digests[column.name] = float_bits(value)[0].as_py()
            if column in self._forms.named:
                key.insert(self._forms.named.index(column), str(value[0].as_py()))
        return Detail(int(rows.rows[at]), tuple(key), tuple(digests[column.name] or b"" for column in self._forms.columns))

    def _exact(self, session: Session) -> ExactRead:
        return ExactRead(session, self._table, identity=self._identity, era=self._era, to_a_change=not self._forms.key)

    def _range(self, parting: Parting, index: int) -> str:
        low = (parting.bounds[index - 1],) if index else None
        high = (parting.bounds[index],) if index < len(parting.bounds) else None
        return key_condition(self._table, low, high)

    def _rows(self, session: Session, where: str) -> Iterator[RowHashes]:
        for _, rows in self._select(session, where, [], []):
            yield rows

    def _select(
        self, session: Session, where: str, items: list[str], columns: list[MySqlColumn]
    ) -> Iterator[tuple[pa.RecordBatch, RowHashes]]:
        forms = self._forms
        digests = [f"UNHEX({self._row})", *([f"UNHEX({self._key})"] if forms.key else [])]
        described = [MySqlColumn(name=f"h{index}", base="varbinary", nullable=False) for index in range(len(digests))]
        floats = [MySqlColumn(name=f"f{index}", base="double") for index in range(len(forms.floats))]
        selected = [*digests, *(sql_float(column) for column in forms.floats), *items]
        sql = f"SELECT {', '.join(selected)} FROM {from_table(session, self._table)} WHERE {where}"
        for batch in select(session, sql, [*described, *floats, *columns], _PLAIN, counters=ReadCounters()):
            bits = {column.name: float_bits(batch.column(f"f{index}")) for index, column in enumerate(forms.floats)}
            row = hashes(forms.with_floats(from_raw(batch.column("h0")), list(bits.values())))
            of_key = [bits[column.name] for column in forms.key if column.name in bits]
            key = hashes(forms.with_floats(from_raw(batch.column("h1")), of_key)) if forms.key else row
            yield batch, RowHashes.of(key, row)


def _number(digest: str) -> str:
    """The first 64 bits of a digest as a number. Without the cast it is text, which counts as a DOUBLE."""
    return f"CAST(CONV(LEFT({digest}, 16), 16, 10) AS UNSIGNED)"


def _class(parting: Parting, index: int, keys: Hashes) -> Classes:
    return (keys % np.uint64(parting.remainders)).astype(np.int64) + index * parting.remainders
