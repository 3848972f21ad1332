"""`snowmelt demo`: the product as a user meets it, on a MariaDB of its own that never stands still, and the proof that nothing went wrong.

Laws:
- The pipeline runs as `snowmelt run` in processes of their own, by a pipeline file that is shown; nothing of it is called from here.
- `verified` is the last line only if `snowmelt verify` says so of every table, and the change table has each change exactly once.
- However it ends, nothing is left: no process, and no folder unless it was asked for, or something was wrong that is worth a look.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.syntax import Syntax
from rich.table import Table

from snowmelt.config import read_pipeline
from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.read.reads import log_end
from snowmelt.demo.history import History, prove
from snowmelt.demo.process import Command, running
from snowmelt.demo.server import local_mariadb
from snowmelt.demo.shop import (
    DATABASE,
    EMPTIED,
    HISTORY,
    LARGE,
    NEW_COLUMN,
    NEW_COLUMN_FILLED,
    TABLES,
    USER,
    WRITERS,
    Shop,
    ShopStatement,
    ShopWriter,
    Sizes,
    at_work,
    create,
)
from snowmelt.demo.show import Show
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.driver.state import State
from snowmelt.engine.tasks.warming import warm
from snowmelt.errors import InvariantBroken, Unavailable
from snowmelt.model.numbers import EpochNumber
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.tables import TablePhase
from snowmelt.status import read_status
from snowmelt.store.objects import open_store
from snowmelt.verify.standing import Standings

SECONDS = 60.0
ROWS = 200_000
WAIT_S_MAX = 300.0
"""For anything that the demo waits for."""
_LOOK_S = 0.2
_WHILE = 0.08
"""Between two events, as a share of the load."""
_FILE = "pipeline.yaml"
_HISTORY_TARGET = f"{DATABASE}.payment_changes"
_ROWS_SHOWN = 6
_VERIFY_ENDS = (0, 1, 3)
"""Exit codes of `snowmelt verify` that come with verdicts."""


@dataclass(slots=True, kw_only=True)
class _Story:
    """What happened, for the summary."""

    copy_s: float = 0.0
    copied: int = 0
    lag_s_max: float = 0.0
    killed: str = ""
    back_s: float = 0.0
    current_s: float = 0.0
    load_s: float = 0.0
    verdicts: list[dict[str, Any]] = field(default_factory=list)


def run_demo(*, seconds: float = SECONDS, rows: int = ROWS, keep: bool = False) -> None:
    """The demo with a load of at least `seconds`. It returns if everything is verified."""
    show = Show()
    with _interruptible(), _folder(show, keep=keep) as folder:
        _Demo(show, folder, Sizes(rows), seconds, kept=keep).run()


@contextlib.contextmanager
def _folder(show: Show, *, keep: bool) -> Iterator[Path]:
    """What went wrong is worth a look; what was interrupted is not."""
    # A socket's path may have some hundred bytes only, so it lies close to the root.
    folder = Path(tempfile.mkdtemp(prefix="snowmelt-"))
    try:
        yield folder
    except Exception:
        keep = keep or (folder / _FILE).exists()
        if keep:
            show.say(f"What it was doing, and what the runs said, is in {folder}")
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, and neither disturbs what is done then."""

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


class _Demo:
    def __init__(self, show: Show, folder: Path, sizes: Sizes, seconds: float, *, kept: bool) -> None:
        self._show = show
        self._kept = kept
        self._folder = folder
        self._sizes = sizes
        self._seconds = seconds
        self._file = folder / _FILE
        self._story = _Story()
        self._writers: list[ShopWriter] = []
        self._doing = ""
        self._load_began = 0.0
        self._heard = 0

    def _tell_compiling(self, ready: int, of: int) -> None:
        if not ready:
            self._show.say(f"First, and once: {of} kernels are compiled, which takes about half a minute …")
        elif ready % 10 == 0 or ready == of:
            self._show.say(f"{ready} of {of} are ready.")

    def run(self) -> None:
        show = self._show
        show.say("Starting MariaDB, filling a shop …")
        warm(self._tell_compiling)
        show.times.part("compiling or loading what is compiled")
        with local_mariadb(self._folder) as root:
            user = create(root, self._sizes, self._folder)
            self._shop = Shop(root, self._sizes)
            with Session(root) as session:
                start, server = log_end(session, era=0), str(session.server)
            show.times.part("starting MariaDB, making its rows")
            self._introduce(server, root)
            with show:
                end = self._carry(root)
                self._verify()
            history = self._prove(user, start, end)
            show.times.part("proving the change table")
        self._conclude(history)

    def _introduce(self, server: str, root: MySqlOptions) -> None:
        self._file.write_text(_pipeline(root.port, self._sizes))
        self._show.title(f"{server}, {len(TABLES)} tables, {self._sizes.rows:,} rows. The pipeline, pipeline.yaml:")
        self._show.picture(Syntax(self._file.read_text(), "yaml", background_color="default"))
        self._show.title(f"{WRITERS} writers change the shop while `snowmelt run pipeline.yaml` copies it.")

    # ---- the load

    def _carry(self, root: MySqlOptions) -> Position:
        """The load, the kill and what follows; the end of the log that the lake has then."""
        story, times = self._story, self._show.times
        self._writers = [ShopWriter(self._shop, number) for number in range(WRITERS)]
        self._load_began = time.monotonic()
        with contextlib.ExitStack() as stack:
            with at_work(self._writers):
                first = stack.enter_context(running(self._folder, self._folder / "run-1.log", "run", str(self._file)))
                self._first_run(first)
                epoch = self._kill(first)
                second = stack.enter_context(running(self._folder, self._folder / "run-2.log", "run", str(self._file)))
                self._second_run(second, epoch)
                story.load_s = time.monotonic() - self._load_began
            times.part("the load after the kill")
            with Session(root) as session:
                end = log_end(session, era=0)
            self._doing = "catching up"
            standings = Standings(State(open_store(self._settings().state)), patience_s=WAIT_S_MAX)
            self._wait(lambda: _is_current(standings, end), second, "the lake to have everything")
            story.current_s = times.part("until the lake has the last change")
            self._show.note(f"The writers have stopped; {story.current_s:.1f} s later the lake has all of it. Ctrl-C (SIGINT) to the run:")
            second.interrupt()
            self._show.note(f"{second.told[-1].get('text', '')}, exit code 0")
            times.part("the clean end of the run")
        return end

    def _first_run(self, first: Command) -> None:
        story, show = self._story, self._show
        self._doing = "copying"
        self._wait(lambda: bool(first.progress), first, "the first run to begin")
        began = time.monotonic()
        show.times.part("starting the run: Python, Spark")
        self._wait(lambda: self._all_live(first), first, "the copy")
        story.copy_s, story.copied = time.monotonic() - began, first.rows
        show.times.part("the copy, under load")
        show.note(f"All {len(TABLES)} tables are live: {first.rows:,} rows in {story.copy_s:.1f} s, changes of that time among them.")
        self._doing = "load"
        self._statement(NEW_COLUMN)
        self._load_until(0.3, first)
        self._statement(EMPTIED)
        self._statement(LARGE)
        self._load_until(0.5, first)
        show.times.part("the load up to the kill")

    def _kill(self, first: Command) -> EpochNumber:
        """The last epoch that was done then."""
        story, show = self._story, self._show
        first.kill()
        status = read_status(self._settings())
        under_way = "another one decided on and not yet in all tables" if status.under_way else "none decided on"
        story.killed = (
            f"epoch {status.epoch} was done, {under_way}, {status.waiting_bytes / 1e6:.1f} MB of the log captured and not in the lake"
        )
        show.note("kill -9 of the run, Spark and all.")
        show.note(f"When it died {story.killed}. The writers continue; `snowmelt run pipeline.yaml` again:")
        return status.epoch

    def _second_run(self, second: Command, epoch: EpochNumber) -> None:
        story, show = self._story, self._show
        self._doing = "load, after kill -9"
        self._heard = 0
        self._wait(lambda: bool(second.progress), second, "the second run to begin")
        again = [table for table, phase in second.phases.items() if phase != "live"]
        self._wait(lambda: second.epoch > epoch, second, "the second run to continue")
        story.back_s = show.times.part("after kill -9: until the next epoch is done")
        copies = f"it continues the copy of {', '.join(again)}" if again else "every table is live as before, none is copied again"
        show.note(f"Epoch {second.epoch} is done {story.back_s:.1f} s after the kill; {copies}.")
        self._load_until(0.75, second)
        self._statement(NEW_COLUMN_FILLED)
        self._load_until(1.0, second)

    def _statement(self, statement: ShopStatement) -> None:
        self._shop.run(statement)
        self._show.note(f"{statement.sql}   (the writers continue)")

    def _load_until(self, share: float, command: Command) -> None:
        """Until so much of the load is over; and for a while in any case, because on a slow machine the copy alone took longer."""
        ends = max(self._load_began + share * self._seconds, time.monotonic() + _WHILE * self._seconds)
        self._wait(lambda: time.monotonic() >= ends, command, "the load")

    def _wait(self, condition: Callable[[], bool], command: Command, what: str) -> None:
        """Wait, and show what happens. A process that ends by itself meanwhile ends the demo too."""
        deadline = time.monotonic() + WAIT_S_MAX + self._seconds
        while not condition():
            command.check_alive()
            for writer in self._writers:
                if writer.error is not None:
                    raise writer.error
            if time.monotonic() > deadline:
                raise Unavailable(f"waited too long for {what}", detail=f"{WAIT_S_MAX + self._seconds:.0f} s")
            self._hear(command)
            self._show.look(self._doing, command, self._shop)
            time.sleep(_LOOK_S)

    def _hear(self, command: Command) -> None:
        if self._all_live(command):
            self._story.lag_s_max = max(self._story.lag_s_max, command.progress["lag_s"] or 0.0)
        told, self._heard = command.told[self._heard :], len(command.told)
        for event in told:
            if event["event"] in ("warning", "error"):
                self._show.note(f"{event['event']}: {event['text']}")

    def _all_live(self, command: Command) -> bool:
        return len(command.phases) == len(TABLES) and set(command.phases.values()) == {"live"}

    def _settings(self) -> Settings:
        return read_pipeline(self._file).to_settings()

    # ---- the proof

    def _verify(self) -> None:
        self._show.note("`snowmelt verify pipeline.yaml`: every table, row by row where checksums differ")
        with running(self._folder, self._folder / "verify.log", "verify", str(self._file)) as command:
            self._doing = "verifying"
            self._wait(lambda: command.ended, command, "the comparison")
            command.finish(allowed=_VERIFY_ENDS)
        self._story.verdicts = [event for event in command.told if event["event"] == "verdict"]
        self._show.times.part("verifying")

    def _prove(self, user: MySqlOptions, start: Position, end: Position) -> History:
        self._show.note("the change table, against the server's log and what the writers counted")
        table = TableId(DATABASE, HISTORY)
        counted = self._shop.changed[HISTORY]
        return prove(user, str(self._settings().sink.warehouse), _HISTORY_TARGET, table, after=start, upto=end, counted=counted)

    def _conclude(self, history: History) -> None:
        story, show, shop = self._story, self._show, self._shop
        verdicts = {verdict["table"]: verdict for verdict in story.verdicts}
        table = Table("table", "lake table", "rows", "rows changed", "verdict", title="Database and lake", title_justify="left")
        for name in TABLES:
            said = verdicts.get(f"{DATABASE}.{name}", {"target": "", "rows": 0, "outcome": "not verified", "reason": "no verdict"})
            outcome = f"{said['outcome']}: {said['reason']}" if said["reason"] else said["outcome"]
            table.add_row(name, said["target"], f"{said['rows']:,}", f"{shop.changed[name]:,}", outcome)
        show.title("What came out")
        show.picture(table)
        rows = verdicts.get(f"{DATABASE}.{HISTORY}", {}).get("rows")
        wrong = [*history.wrong]
        if history.left != rows:
            wrong.append(f"its changes leave {history.left:,} rows")
        self._tell_history(history, wrong)
        self._sum_up()
        not_right = [name for name in TABLES if verdicts.get(f"{DATABASE}.{name}", {}).get("outcome") != "verified"]
        if wrong or not_right:
            raise InvariantBroken("the lake is not verified", detail=", ".join([*not_right, *wrong]))
        _tell_what_next(show, self._folder if self._kept else None)
        show.say("verified")

    def _tell_history(self, history: History, wrong: list[str]) -> None:
        show = self._show
        if wrong:
            show.say(f"{_HISTORY_TARGET} is wrong: {'; '.join(wrong)}")
        else:
            show.say(
                f"{_HISTORY_TARGET} is the history of {HISTORY}: {history.read:,} rows that were copied and {history.carried:,} changes "
                f"after the copy, each exactly once and fitting what was there before it. The server's log, read again, has just these; "
                f"{history.covered:,} more are in the copy, and the writers counted the same."
            )
        names = ("_op", "_position", "id", "amount", "state", "version")
        table = Table(*names, title="The newest changes of one payment, as the lake has them", title_justify="left")
        for row in history.longest(_ROWS_SHOWN).select(list(names)).to_pylist():
            table.add_row(*(str(row[name]) for name in names))
        show.picture(table)

    def _sum_up(self) -> None:
        story, show, shop = self._story, self._show, self._shop
        made = sum(shop.changed.values())
        show.title("In numbers")
        show.say(f"copied   {story.copied:,} rows in {story.copy_s:.1f} s, {story.copied / story.copy_s:,.0f} rows/s, under load")
        rate = f"{made / story.load_s:,.0f} rows/s"
        show.say(f"changed  {made:,} rows in {shop.committed:,} transactions, {rate}; {shop.rolled_back:,} more were rolled back")
        show.say(
            f"lag      at most {story.lag_s_max:.1f} s, with kill -9 in it; {story.current_s:.1f} s after the last change all was there"
        )
        show.say(f"kill -9  {story.killed}; the next epoch was done {story.back_s:.1f} s later")
        show.title("Where the time went")
        for what, took in [*show.times.parts, ("in all", show.times.total_s)]:
            show.say(f"{took:6.1f} s  {what}")


def _is_current(standings: Standings, end: Position) -> bool:
    """Whether the lake has the log up to a position, and no table is still being copied."""
    standing = standings.look()
    if standing.place is None or standing.place < end:
        return False
    return all(table.phase is TablePhase.RELEASED and table.copy is None for table in standing.ledger.tables)


def _pipeline(port: int, sizes: Sizes) -> str:
    return f"""\
source:
  type: mysql                  # MariaDB too
  host: 127.0.0.1
  port: {port}
  username: {USER}
  password: file:password      # by reference, never in the clear
  tables: [{DATABASE}.*]
sink:
  type: paimon
  warehouse: lake
routes:                        # all others keep their names
  - {{source: {DATABASE}.{HISTORY}, target: {_HISTORY_TARGET}, mode: changelog}}
pipeline:
  name: demo
  state: state
  interval: 1s
  rows_per_chunk: {sizes.rows_per_chunk}
"""


def _tell_what_next(show: Show, folder: Path | None) -> None:
    show.title("How the lake is read" + ("" if folder else " (`snowmelt demo --keep` leaves one to try it on)"))
    code = f"""\
lake = "{folder / "lake" if folder else "/data/lake"}"

# A Spark DataFrame, without any jar.
orders = snowmelt.read(spark, "{DATABASE}.orders", warehouse=lake)
orders.groupBy("channel").count().show()

# DuckDB reads Arrow as it is.
changes = snowmelt.read(spark, "{_HISTORY_TARGET}", warehouse=lake).toArrow()
duckdb.sql("SELECT _op, count(*) FROM changes GROUP BY _op").show()
"""
    show.picture(Syntax(code, "python", background_color="default"))
    if folder is not None:
        show.say(f"The folder with all of it is {folder}")
    show.say("Next: README.md has a pipeline for a server of yours, docs/guide.md every key and command, `snowmelt run --help` an example.")
