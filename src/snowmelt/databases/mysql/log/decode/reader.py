"""A server's log as Arrow, one range after the other: batches of changes per table, and schema changes, in the order of the log.

Laws:
- Rows come out only once their transaction has ended, and each carries the end of its commit as `_position`. A group that was rolled back
  gives nothing. An XA group that was prepared is held aside until its COMMIT, whose position its rows then get.
- What a transaction undid by ROLLBACK TO never comes out. Rows of tables without transactions are an exception: they stay (`savepoints`).
- Rows before a schema change are read with the schema before it, rows after it with the schema after it.
- Batches of one table come in the order of the log, and so do the rows inside. Batches of different tables may overtake each other between
  two schema changes.
- A change that the log holds as a statement, not as rows, is an error: nothing of a captured table is skipped.
- A range counts once it was read to its end. An error takes back all that the range handed out: a misplaced event may show only at the
  next one. Missing events show by the positions. On MariaDB, which leaves events out, they show only by the range's length.

Memory: a window, an entry per row event of it, and one arena per batch. Nothing grows with the range or with a transaction
(`relay.limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.contract.stretches import InMemory, LogBytes, SegmentSlice
from snowmelt.databases.mysql.log.decode.batches import BatchMaker
from snowmelt.databases.mysql.log.decode.following import SchemaFollower
from snowmelt.databases.mysql.log.decode.items import Counters, HeldGroup, LogItem
from snowmelt.databases.mysql.log.decode.prepared import PreparedGroups
from snowmelt.databases.mysql.log.decode.ranges import RangeWalk
from snowmelt.databases.mysql.log.decode.tables import LogServer, LogTables
from snowmelt.databases.mysql.log.details import details_of
from snowmelt.databases.mysql.log.events import Xid
from snowmelt.databases.mysql.log.scan import Places, Walk
from snowmelt.databases.mysql.log.unpack import Unpacker
from snowmelt.databases.mysql.log.windows import Windows
from snowmelt.databases.mysql.types.columns import MySqlTable, TypeOptions
from snowmelt.errors import Corrupt, clear_frames
from snowmelt.model.position import Position
from snowmelt.model.table import SchemaHistory, TableId
from snowmelt.relay.limits import Limits
from snowmelt.segments import Segment


class LogReader:
    """Reads ranges of one server's log, one after the other. Keeps prepared XA groups and plans between them.

    `low` and `prepared` may be set before a range is read.
    """

    def __init__(
        self,
        *,
        server: LogServer,
        schemas: SchemaHistory[MySqlTable],
        captured: Callable[[TableId], bool] = lambda _: True,
        skip_statements: bool = False,
        names: bool = True,
        options: TypeOptions = TypeOptions(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        """`schemas` is read and added to: a statement's effect is recorded before the rows after it are read. `skip_statements`: the caller
        has read the statements before (`statements`), and `schemas` has the one shape of each table in the whole range. Without `names`
        transactions have no GTIDs; reading them takes a seventh of the time where each transaction has one row."""
        self._tables = LogTables(server.flavour, schemas, captured)
        self._limits = limits
        self._names = names
        self._batches = BatchMaker(self._tables, options, limits)
        self._groups = PreparedGroups(self._tables, self._batches, limits)
        self._follower = None if skip_statements else SchemaFollower(server, schemas, captured)

    @property
    def low(self) -> Callable[[TableId], int]:
        """Rows of a table that were committed at or before this offset are skipped, and not decoded."""
        return self._tables.low

    @low.setter
    def low(self, low: Callable[[TableId], int]) -> None:
        self._tables.low = low

    @property
    def prepared(self) -> Callable[[Xid, Position], HeldGroup | None] | None:
        """Finds a prepared group at its COMMIT. With it no group is held here."""
        return self._groups.find

    @prepared.setter
    def prepared(self, find: Callable[[Xid, Position], HeldGroup | None] | None) -> None:
        self._groups.find = find

    @property
    def held(self) -> dict[str, HeldGroup]:
        """The prepared groups that are held here, by their names."""
        return self._groups.held

    @property
    def counters(self) -> Counters:
        return self._batches.counters

    def read_segment(self, segment: Segment) -> Iterator[LogItem]:
        """Decode a segment that capture stored."""
        return self.read_part(segment, SegmentSlice(0, segment.start.offset, None, segment.end.offset))

    def read_part(self, segment: Segment, part: SegmentSlice) -> Iterator[LogItem]:
        """Decode the events between two cuts of a segment."""
        data = segment.bytes()[part.first : part.last]
        return self.read_stored(segment, part, InMemory(data, window_bytes=self._limits.prefilter_bytes))

    def read_stored(self, segment: Segment, part: SegmentSlice, log: LogBytes) -> Generator[LogItem, None, None]:
        """The same, of bytes that are fetched piece by piece. They are given back at the end, or when the iterator is closed."""
        return self.read_log(log, file=segment.start.file, start=part.start, end=part.end, checksum_bytes=details_of(segment).crc_length)

    def read(self, data: Bytes, *, file: int, start: int, checksum_bytes: int, end: int | None = None) -> Iterator[LogItem]:
        """Decode whole transactions: `data` are the events of log file `file` from offset `start` on, up to `end` if that is known."""
        log = InMemory(data, window_bytes=self._limits.prefilter_bytes)
        return self.read_log(log, file=file, start=start, checksum_bytes=checksum_bytes, end=end)

    def read_log(
        self, log: LogBytes, *, file: int, start: int, checksum_bytes: int, end: int | None = None
    ) -> Generator[LogItem, None, None]:
        """The same, of bytes that lie anywhere. Their pieces are given back at the end, or when the iterator is closed."""
        gaps = self._tables.flavour == "mariadb"
        # Packed events may make a range larger than it is, and never a window.
        walk = Walk(window_bytes=log.window_bytes, position=start)
        unpacker = Unpacker(gaps=gaps, limits=self._limits)
        places = Places.GAPS if gaps else Places.EXACT
        windows = Windows(log, walk, unpacker, checksum_bytes=checksum_bytes, places=places, where=f"{file}:{start}")
        walked = RangeWalk(
            walk,
            windows,
            file,
            tables=self._tables,
            batches=self._batches,
            prepared=self._groups,
            follower=self._follower,
            names=self._names,
        )
        try:
            yield from walked.items()
        except BaseException as error:
            # The error keeps its frames, and these would keep spill files open.
            clear_frames(error)
            raise
        finally:
            windows.close()
            self.counters.unpacked_bytes += unpacker.bytes_made
        unpacker.check_whole(f"{file}:{walk.position}")
        if end is not None and walk.position != end:
            raise Corrupt("the range ends elsewhere than it must", detail=f"not at {end}", position=f"{file}:{walk.position}")
