"""The log replayed over chunks that were copied while eight writers changed and altered their tables is the live table.

Each oracle is shown to be able to fail by the bug that it exists for. That a mark by the end of the log loses rows on MySQL,
and what a lock on MySQL 5.6 is worth, is shown in test_marks.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from snowmelt.databases.mysql.connect import Session
from snowmelt.databases.mysql.gtid import MariaDbGtidSet, MySqlGtidSet, of_words
from snowmelt.databases.mysql.log.decode import ChangeBatch
from snowmelt.databases.mysql.log.events import MariaDbGtid, MySqlGtid
from snowmelt.databases.mysql.log.files import LogFile
from snowmelt.databases.mysql.read import reads
from snowmelt.databases.mysql.read.marks import GtidMark
from snowmelt.databases.mysql.read.reads import Method, log_end, newest_visible, read_method
from snowmelt.errors import Unavailable
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from tests.conftest import Fresh
from tests.integration import workload
from tests.integration.dump import logged_and_not_shown, write
from tests.integration.replay import (
    AFTER,
    BEFORE,
    DELETE,
    INSERT,
    Altered,
    Change,
    FollowedLog,
    Source,
    Transaction,
    by_mark,
    difference,
    open_session,
)
from tests.kit.servers import NotRun, Server, give_up, start_mariadb, start_mysql8

SERVERS: dict[str, tuple[Callable[..., Server], dict[str, str], Method]] = {
    "mariadb": (start_mariadb, {}, Method.SNAPSHOT),
    "mysql8": (start_mysql8, {}, Method.GTID),
    "mysql8 without GTIDs": (start_mysql8, {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}, Method.LOCK),
}
CHANGES = 200_000
WRITERS = 8
SEED = 20_261_115


@pytest.fixture(scope="module", params=SERVERS)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    start, settings, method = SERVERS[request.param]
    folder = tmp_path_factory.mktemp("replay")
    try:
        # Small files, so that the log goes through many of them.
        server = start(folder / "server", max_binlog_size="8M", **settings)
    except NotRun as reason:
        give_up(reason)
    try:
        with open_session(server) as session:
            assert read_method(session) is method
        workload.create(server, SEED)
        with Source(server, folder / "segments", workload.DATABASE) as source:
            with workload.written(server, seed=SEED, writers=WRITERS, changes=CHANGES):
                source.copy(rows_per_chunk=300)
            source.finish()
        yield source
    finally:
        server.discard()
        shutil.rmtree(folder, ignore_errors=True)


def changes_of(source: Source) -> list[Change]:
    return [step for table in source.tables for step in source.stream(table) if isinstance(step, Change)]


def test_the_log_replayed_over_the_copied_chunks_is_the_live_table(source: Source) -> None:
    for table in source.tables:
        folded = source.fold(table)
        assert not folded.lost, f"{table}: a cut was not visible"
        assert difference(folded, source.live(table)) == "", table


def test_the_writers_did_all_that_could_go_wrong_while_the_chunks_were_read(source: Source) -> None:
    changes = changes_of(source)
    counted = Counter(change.operation for change in changes)
    assert counted[INSERT] + counted[AFTER] + counted[DELETE] >= CHANGES
    pairs = [(one, other) for one, other in itertools.pairwise(changes) if one.operation == BEFORE]
    assert all(other.operation == AFTER for _, other in pairs), "an update is two images, side by side"
    assert sum(one.key != other.key for one, other in pairs) > 1000
    for table in source.tables:
        stream, copies, folded = source.stream(table), source.copies[table], source.fold(table, is_covered=by_mark)
        assert sum(isinstance(step, Altered) for step in stream) >= 3
        assert len(copies) > 3
        assert len({copy.mark.high for copy in copies}) > 3, "the chunks were read at different times"
        assert 0 < folded.covered < sum(isinstance(step, Change) for step in stream)


def test_an_append_only_target_holds_each_change_once_where_marks_are_exact(source: Source) -> None:
    for table in source.tables:
        for change, copy in source.fold(table, is_covered=by_mark).misfits:
            assert isinstance(copy.mark, GtidMark) or change.transaction.xa, f"{table}: an exact read and the log don't meet"
            # Between what was surely read and the end of the log as of then, a change may come twice.
            assert change.transaction.position <= copy.mark.high


def test_changes_that_no_mark_holds_back_come_twice_although_rows_with_keys_converge(source: Source) -> None:
    misfits = 0
    for table in source.tables:
        folded = source.fold(table)
        misfits += len(folded.misfits)
        assert difference(folded, source.live(table)) == "", table
    assert misfits > 0, "the race was not met; nothing is proven"


def test_a_key_change_that_is_judged_by_its_new_key_alone_leaves_rows_behind(source: Source) -> None:
    """The planted bug: an update is one event of the chunk that its row is in afterwards."""
    differing = {table: difference(source.fold(table, judged_by_new_key=True), source.live(table)) for table in source.tables}
    assert any("too many" in words for words in differing.values()), differing


def test_a_row_stands_where_its_commit_ends_as_index_and_server_have_it(source: Source) -> None:
    by_file: dict[int, set[int]] = {}
    for segment, items in zip(source.log.segments, source.log.items, strict=True):
        for item in items:
            if not isinstance(item, ChangeBatch):
                assert segment.start < item.position <= segment.end
                continue
            places = list(zip(item.rows.column("_position").to_pylist(), item.rows.column("_event").to_pylist(), strict=True))
            assert places == sorted(places)
            assert segment.start.offset < places[0][0] <= places[-1][0] <= segment.end.offset
            by_file.setdefault(segment.start.file, set()).update(place for place, _ in places)
    assert len(by_file) > 2
    log = LogFile.parse(source.log.segments[0].log)
    with open_session(source.server) as session:
        for file, places in list(by_file.items())[:2]:
            events = session.query(f"SHOW BINLOG EVENTS IN '{log.base}.{file:0{log.digits}}'")
            ends = {int(event[4]) for event in events if event[2] == "Xid" or re.match("XA COMMIT|COMMIT", str(event[5]))}
            assert places <= ends


def test_a_segment_holds_just_the_transactions_that_its_index_names(source: Source) -> None:
    before, after = {}, {}
    known = None
    for segment in source.log.segments:
        before[segment.number], after[segment.number] = known, of_words(segment.end.transactions)
        known = of_words(segment.end.transactions)
    seen = 0
    for number, transaction in source.log.transactions():
        match transaction.gtid, after[number], before[number]:
            case MySqlGtid(name, count), MySqlGtidSet() as inside, earlier:
                assert inside.has(name, count)
                assert not isinstance(earlier, MySqlGtidSet) or not earlier.has(name, count)
            case MariaDbGtid(domain, _, count), MariaDbGtidSet() as inside, earlier:
                assert inside.has(domain, count)
                assert not isinstance(earlier, MariaDbGtidSet) or not earlier.has(domain, count)
            case None, None | MySqlGtidSet(intervals={}), _:
                pass
            case unexpected:
                raise AssertionError(unexpected)
        seen += 1
    assert seen > 1000


# Single stories, for what random writers meet by chance only.


def create(server: Server, name: str, columns: str, *rows: str) -> TableId:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.t ({columns})")
        for row in rows:
            cursor.execute(f"INSERT INTO {name}.t VALUES ({row})")
    return TableId(name, "t")


@contextmanager
def at_the_first_chunk(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Act once, when the snapshot of a table's first chunk is open and neither the table was touched nor the log's end read."""
    pin, pins = reads.ExactRead._pin, itertools.count(1)

    def act_and_pin(exact: reads.ExactRead) -> None:
        # The first exact read is that of the table's ends.
        if next(pins) == 2:
            act()
        pin(exact)

    with monkeypatch.context() as patch:
        patch.setattr(reads.ExactRead, "_pin", act_and_pin)
        yield


@pytest.mark.parametrize("committed", ["while the snapshot opens", "after the read"])
def test_a_prepared_transaction_counts_from_its_commit_on(
    source: Source, committed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prepared row lies in the log below the mark and is in no read: judged by where it lies, or by its name there, it is lost."""
    server = source.server
    monkeypatch.setattr(reads, "LOCK_WAIT_S", 1)
    monkeypatch.setattr(reads, "LOCK_TRIES", 1)
    table = create(server, "bank", "id INT NOT NULL PRIMARY KEY", "1", "9")
    with (
        Source(server, tmp_path / "segments", "bank") as bank,
        open_session(server) as admin,
        server.connect(database="bank") as connection,
        connection.cursor() as cursor,
    ):
        for name, row in (("rolled", 2), ("kept", 3)):
            for words in (f"XA START '{name}'", f"INSERT INTO t VALUES ({row})", f"XA END '{name}'", f"XA PREPARE '{name}'"):
                cursor.execute(words)
            if name == "rolled":
                cursor.execute(f"XA ROLLBACK '{name}'")
        prepared = Transaction(log_end(admin, era=0), newest_gtid(admin))
        raced = read_method(admin) is not Method.LOCK
        if not raced:
            # The lock waits for what is prepared, so the race can't be lost; nor can it be run.
            with pytest.raises(Unavailable, match="can't be locked"):
                bank.copy(rows_per_chunk=10)
            cursor.execute("XA COMMIT 'kept'")
            bank.copy(rows_per_chunk=10)
        elif committed == "after the read":
            bank.copy(rows_per_chunk=10)
            cursor.execute("XA COMMIT 'kept'")
        else:
            with at_the_first_chunk(lambda: cursor.execute("XA COMMIT 'kept'"), monkeypatch):
                bank.copy(rows_per_chunk=10)
        bank.finish()
        folded, live = bank.fold(table, is_covered=by_mark), bank.live(table)
        assert list(live.rows) == [(1,), (3,), (9,)]
        assert difference(bank.fold(table), live) == ""
        assert all(change.transaction.xa for change, _ in folded.misfits), "what a mark leaves open comes again, and nothing else"
        assert not folded.lost
        naive = bank.fold(table, is_covered=lambda copy, _: by_mark(copy, prepared))
        assert difference(naive, live) == ("1 rows lost" if raced else "")


def newest_gtid(session: Session) -> MySqlGtid | None:
    """The name of the last transaction of a server that gives names and has all of them from one source."""
    if session.server.flavour == "mariadb":
        return None
    executed = MySqlGtidSet.parse(session.value("SELECT @@GLOBAL.gtid_executed"))
    return next((MySqlGtid(name, spans[-1][1]) for name, spans in executed.intervals.items()), None)


def test_a_cut_that_the_relay_has_but_selects_do_not_show_loses_what_lies_below_it(fresh_mariadb: Fresh, tmp_path: Path) -> None:
    """A server that waits for a replica has sent the transaction to us already."""
    server = fresh_mariadb(rpl_semi_sync_master_wait_point="AFTER_SYNC", rpl_semi_sync_master_timeout=600_000)
    table = create(server, "semi", "id BIGINT NOT NULL PRIMARY KEY", "1")
    with open_session(server) as admin, Source(server, tmp_path / "segments", "semi") as semi:
        with logged_and_not_shown(server, "INSERT INTO semi.t VALUES (2)") as waiting:
            semi.log.read_to(waiting)
            naive_cut = semi.log.segments[-1].end
            visible = newest_visible(admin, semi.tables[table], era=0)
            assert isinstance(visible, Position)
            assert visible < waiting <= naive_cut
            semi.copy(rows_per_chunk=10)
        semi.finish()
        live = semi.live(table)
        assert list(live.rows) == [(1,), (2,)]
        assert difference(semi.fold(table), live) == ""
        naive = semi.fold(table, is_covered=lambda copy, transaction: transaction.position <= naive_cut)
        assert difference(naive, live) == "1 rows lost"


SWAP_NAMES = "ALTER TABLE swap.t RENAME COLUMN a TO b, RENAME COLUMN b TO a"
SWAP = ("swap", "id INT NOT NULL PRIMARY KEY, a INT, b INT", "1, 10, 20", "2, 30, 40")


@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_a_read_in_the_shape_of_after_its_mark_is_given_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(kind)
    table = create(server, *SWAP)
    with Source(server, tmp_path / "segments", "swap") as swap:
        with at_the_first_chunk(lambda: write(server, SWAP_NAMES), monkeypatch):
            swap.copy(rows_per_chunk=10)
        swap.finish()
        assert swap.given_back["its shape changed"] == 1
        assert difference(swap.fold(table), swap.live(table)) == ""


@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_a_read_in_the_shape_of_after_its_mark_has_values_in_the_wrong_columns(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: rows come by their new names at a mark below the statement, which then swaps them again."""
    server: Server = request.getfixturevalue(kind)
    table = create(server, *SWAP)
    monkeypatch.setattr(reads.ExactRead, "_check_shape", lambda read, _: read._table)
    monkeypatch.setattr(FollowedLog, "altered", lambda *_: False)
    with Source(server, tmp_path / "segments", "swap") as swap:
        with at_the_first_chunk(lambda: write(server, SWAP_NAMES), monkeypatch):
            swap.copy(rows_per_chunk=10)
        swap.finish()
        assert difference(swap.fold(table), swap.live(table)) == "2 rows differ"
