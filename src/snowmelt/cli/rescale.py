"""`snowmelt rescale`: another number of buckets for a lake table, while its pipeline runs or not."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from snowmelt.cli.failures import failures_told
from snowmelt.cli.output import print_line, print_machine
from snowmelt.errors import Fenced, InvalidConfig, Unavailable
from snowmelt.machine import check_machine

if TYPE_CHECKING:
    from snowmelt.commit.requests import OperatorAnswer
    from snowmelt.config import PipelineConfig
    from snowmelt.engine.driver.settings import Settings
    from snowmelt.store.contract import Store
    from snowmelt.supervise.terminal import Watcher

_LOOK_S: Final = 1.0


def rescale(
    file: Annotated[Path, typer.Argument(help="The pipeline's description.", metavar="pipeline.yaml", show_default=False)],
    table: Annotated[str, typer.Argument(help="database.table of the lake or of the source.", metavar="TABLE", show_default=False)],
    buckets: Annotated[int, typer.Option("--buckets", help="The table's number of buckets from then on.", min=1, show_default=False)],
    master: Annotated[
        str | None,
        typer.Option(help="Where Spark runs, if no pipeline does: local[*], spark://host:7077, … Default: as in the file, or local[*]."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object on each line.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and Spark's messages.")] = False,
) -> None:
    """Give a Paimon table another number of buckets, in one commit. All its rows are written anew.

    A pipeline that runs does it: it writes the rows beside its epochs, then pauses them for a moment and commits. If none runs, this
    command runs the pipeline until it is done. Readers see every row before and after.

    A table that is being copied is rescaled when it is live. Ctrl-C does not take the request back: a pipeline that runs, now or later,
    does it. Exit code 1: it was refused; the table is as it was.

    Example:

      snowmelt rescale pipeline.yaml ods.orders --buckets 8
    """
    with failures_told(as_json=as_json, debug=debug):
        _rescale(file, table, buckets, master=master, as_json=as_json, debug=debug)


def _rescale(file: Path, table: str, buckets: int, *, master: str | None, as_json: bool, debug: bool) -> None:
    from snowmelt.commit.requests import RescaleTable
    from snowmelt.config import read_pipeline
    from snowmelt.engine.loop.requests import answer_to, ask
    from snowmelt.engine.loop.resources import open_lake
    from snowmelt.store.objects import open_store
    from snowmelt.supervise.terminal import JsonLines, Lines

    config = read_pipeline(file)
    settings = config.to_settings()
    store = open_store(settings.state)
    target = _target(settings, store, table, buckets)
    had = open_lake(settings).describe(target).buckets
    watcher: Watcher = JsonLines(print_line) if as_json else Lines(print_line)
    if had == buckets:
        _tell(watcher, target, had, buckets, epoch=0)
        return
    number, request = ask(store, RescaleTable(target=target, buckets=buckets), now_ms=round(time.time() * 1000))
    answer: OperatorAnswer | None = None
    while (answer := answer_to(store, number)) is None:
        if _runs(store):
            _wait(store, number, watcher)
        else:
            _run(config, settings, store, number, watcher, master=master, debug=debug)
    if answer.refused or answer.nonce != request.nonce:
        fact = f"the number of buckets was not changed: {answer.refused or 'another request was answered'}"
        raise Unavailable(fact, detail=target, hint="the table is as it was")
    _tell(watcher, target, had, buckets, epoch=answer.epoch)


def _target(settings: Settings, store: Store, name: str, buckets: int) -> str:
    from snowmelt.engine.driver.state import State
    from snowmelt.engine.maintenance.rescales import BUCKETS_MAX
    from snowmelt.planning.tables import TablePhase

    if settings.sink.fluss is not None:
        raise InvalidConfig("tables of Fluss keep their number of buckets", hint="this is for the sink paimon")
    if buckets > BUCKETS_MAX:
        raise InvalidConfig("a table can't have as many buckets", detail=f"{buckets}, at most {BUCKETS_MAX}")
    ledger = State(store).load()
    if not ledger.epoch:
        raise InvalidConfig("this pipeline has done nothing yet", detail=str(settings.state), hint="set sink.buckets, then `snowmelt run`")
    for table in ledger.tables:
        if name not in (table.target, str(table.incarnation.table)) or table.phase is TablePhase.GONE:
            continue
        if not table.keyed:
            raise InvalidConfig("a change table has no buckets to change", detail=table.target)
        if table.phase is TablePhase.SET_ASIDE:
            hint = "`snowmelt status` shows why; bring it back with `snowmelt run --recopy`"
            raise InvalidConfig("the table is set aside", detail=table.target, hint=hint)
        return table.target
    raise InvalidConfig("no table of this pipeline has this name", detail=name, hint="`snowmelt status` lists its tables")


def _runs(store: Store) -> bool:
    """Whether a driver of the pipeline is alive, as far as its signs tell."""
    from snowmelt.engine.driver.signs import is_alive, read_sign

    sign = read_sign(store)
    return sign is not None and is_alive(sign, time.time())


def _wait(store: Store, number: int, watcher: Watcher) -> None:
    """For the driver that runs. Returns when it has answered, or runs no more."""
    from snowmelt.engine.loop.requests import answer_to

    watcher.note("note", "the pipeline runs, and is asked to do it")
    while answer_to(store, number) is None and _runs(store):
        time.sleep(_LOOK_S)


def _run(
    config: PipelineConfig, settings: Settings, store: Store, number: int, watcher: Watcher, *, master: str | None, debug: bool
) -> None:
    """Run the pipeline until it has answered."""
    from snowmelt.engine.driver.pipeline import PipelineDriver
    from snowmelt.engine.loop.requests import answer_to
    from snowmelt.supervise.restarts import Interrupts, start_compiling, supervise
    from snowmelt.supervise.session import spark_session
    from snowmelt.supervise.terminal import notes_of_log

    master = config.master(master)
    print_machine(check_machine(master))
    interrupts = Interrupts(watcher)
    interrupts.install()
    watcher.note("note", "no pipeline runs, so this command runs it until it is done")
    compiled = start_compiling(watcher) if master.startswith("local") else None
    session = spark_session(config.pipeline.name, master=master, ui=False, debug=debug, entries=config.spark)
    with session as spark, notes_of_log(watcher, debug=debug):
        if compiled is not None:
            compiled(interrupts.asked)
        watcher.begin()
        try:
            # Another one takes over: it is asked, too.
            with contextlib.suppress(Fenced):
                supervise(
                    lambda: PipelineDriver(spark, settings), watcher, interrupts.asked, ended=lambda: answer_to(store, number) is not None
                )
        finally:
            watcher.end()
    if interrupts.asked.is_set():
        raise typer.Exit(1)


def _tell(watcher: Watcher, target: str, had: int, has: int, *, epoch: int) -> None:
    from snowmelt.supervise.terminal import JsonLines

    if isinstance(watcher, JsonLines):
        watcher.tell("rescaled", target=target, buckets_before=had, buckets=has, epoch=epoch)
    elif had == has:
        print_line(f"{target}: it has {has} buckets already")
    else:
        print_line(f"{target}: {had} buckets became {has}, epoch {epoch}")
