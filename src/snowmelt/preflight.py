"""What is wrong with a pipeline before it starts: with its server and tables, its folders, and what it has done so far.

Nothing is changed, in the database or elsewhere, and no row is read.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.commit.ledger import Ledger
from snowmelt.databases.contract import Database
from snowmelt.databases.contract.findings import NO_KEY, Finding, Level, TableFinding, gravest_first
from snowmelt.databases.contract.tables import TableShape, Wanted
from snowmelt.engine.driver.discovery import patterns
from snowmelt.engine.driver.routes import SAME_NAME, Route, Router, assign_targets, check_goes_on
from snowmelt.errors import SnowmeltError
from snowmelt.model.patterns import TablePredicate, match_tables
from snowmelt.model.table import SYSTEM_COLUMNS, TableId
from snowmelt.planning.tables import TablePhase
from snowmelt.sinks.registry import wrong_name

if TYPE_CHECKING:
    from snowmelt.config import PipelineConfig


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A server as it was found, its tables, and, of a pipeline, where they go."""

    server: str
    ignore_case: bool
    found: Mapping[TableId, TableShape]
    findings: list[Finding]
    targets: dict[TableId, str] | None = None
    identity: str = ""
    """Of the server, as states know it."""

    @property
    def errors(self) -> int:
        return sum(finding.level is Level.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "server": self.server,
            "ok": not self.errors,
            "tables": [str(table) for table in self.found],
            "findings": [
                {
                    "code": finding.code,
                    "level": finding.level.value,
                    "fact": finding.fact,
                    "remedy": finding.remedy,
                    "tables": [str(table) for table in finding.tables],
                }
                for finding in self.findings
            ],
        }
        if self.targets is not None:
            told["targets"] = {str(table): target for table, target in self.targets.items()}
        return told


def of_server(
    source: Database, tables: Sequence[str], exclude: Sequence[str], routes: Sequence[Route] = (), *, begun: bool = False
) -> Preflight:
    # A wrong pattern is told before anything is asked of the server.
    match_tables(tables, exclude)
    looked = source.inspect(patterns(tables, exclude, source.system_databases), _changelog(routes), begun=begun)
    findings = _unmatched(tables, exclude, looked.tables, looked.ignores_case, begun=begun) + list(looked.findings)
    return Preflight(
        server=looked.server, ignore_case=looked.ignores_case, found=looked.tables, findings=findings, identity=looked.identity
    )


def _changelog(routes: Sequence[Route]) -> Wanted:
    """Which tables go to change tables."""

    def predicate(ignore_case: bool) -> TablePredicate:
        router = Router(routes, default=SAME_NAME, ignore_case=ignore_case)
        return lambda table: not router.keyed(table)

    return predicate


def of_pipeline(config: PipelineConfig, *, adopt_state: bool = False) -> Preflight:
    """`InvalidConfig`: it is described in another way than when it was begun, or its state was moved or copied."""
    from snowmelt.engine.driver.state import Owner, State
    from snowmelt.store.objects import open_store

    source = config.source
    if (target := config.sink.fluss()) is not None:
        from snowmelt.fluss.client import connect_coordinator

        connect_coordinator(target.bootstrap, target.login).connection.close()
    state = State(open_store(config.pipeline.place()))
    ledger = state.load()
    begun = ledger.epoch > 0
    routes = [route.route(config.maintenance) for route in config.routes]
    looked = of_server(source.database(), source.tables, source.exclude, routes, begun=state.begun)
    # A state of another pipeline, of another server or place, is told before Spark is started.
    owner = Owner(config.pipeline.name, looked.identity, config.to_settings().place)
    state.check_owner(owner, moves=config.source.fails_over, adopt=adopt_state)
    ignore_case = looked.ignore_case
    router = Router(routes, default=SAME_NAME, ignore_case=ignore_case)
    check_goes_on(ledger.tables, match_tables(source.tables, source.exclude, ignore_case=ignore_case), router)
    targets, refused = assign_targets(looked.found, routes, default=SAME_NAME, ignore_case=ignore_case)
    instead = "; or exclude it" if target is not None else "; or give it a route with mode: changelog, or exclude it"
    named: list[Finding] = [
        TableFinding("lake-name", Level.ERROR, f"{why.fact}: {why.detail}", why.hint, (table,)) for table, why in refused.items()
    ]
    named += lake_columns(looked.found.values()) if target is None else []
    named += undivided(looked.found.values(), source.database(), router)
    change_tables = {table for table in looked.found if not router.keyed(table)}
    findings = weigh(looked.findings + named, change_tables, instead, begun=begun)
    for route in router.idle(looked.found):
        remedy = "check its spelling; of several routes that match a table the first wins"
        findings.append(Finding("no-route", Level.WARNING, f"no table takes the route of {route.source}", remedy))
    findings += _folders(config)
    findings += _buckets(config, ledger) if target is None else []
    return replace(looked, findings=gravest_first(findings), targets={table: target.name for table, target in targets.items()})


def lake_columns(tables: Iterable[TableShape]) -> list[Finding]:
    """Columns whose names a Paimon table can't have. Those that snowmelt itself adds are told of already, whatever the sink."""
    wrong: dict[str, list[TableId]] = defaultdict(list)
    for table in tables:
        why = wrong_name(name for name in table.names if name.lower() not in SYSTEM_COLUMNS)
        if why:
            wrong[why].append(table.id)
    remedy = "rename the column, or exclude the tables"
    return [TableFinding("lake-column", Level.ERROR, why, remedy, tuple(found)) for why, found in sorted(wrong.items())]


def undivided(tables: Iterable[TableShape], source: Database, router: Router) -> list[Finding]:
    """Tables that their route's partition_by does not fit."""
    remedy = "correct partition_by, give the table a route without it, or exclude the table"
    found = ((table.id, router.undivided(table, source)) for table in tables)
    return [TableFinding("partition", Level.ERROR, why, remedy, (name,)) for name, why in found if why]


def weigh(findings: Iterable[Finding], change_tables: AbstractSet[TableId], instead: str, *, begun: bool) -> list[Finding]:
    """What findings mean for a pipeline. Only a change table can do without a key. At the first start a user is there to decide; later
    one table must not stop all others. `instead`: what else can be done about a table without a key."""
    weighed: list[Finding] = []
    for finding in findings:
        if finding.code == NO_KEY:
            if others := tuple(table for table in finding.tables if table in change_tables):
                weighed.append(replace(finding, tables=others))
            if keyed := tuple(table for table in finding.tables if table not in change_tables):
                fact = "tables without a key can't be kept as rows"
                weighed.append(replace(finding, level=Level.ERROR, fact=fact, remedy=finding.remedy + instead, tables=keyed))
        else:
            weighed.append(finding)
    if not begun:
        return weighed
    return [
        replace(finding, level=Level.WARNING, fact=f"tables are left out or set aside: {finding.fact}")
        if isinstance(finding, TableFinding) and finding.level is Level.ERROR
        else finding
        for finding in weighed
    ]


def _unmatched(
    patterns: Sequence[str], exclude: Sequence[str], found: Mapping[TableId, TableShape], ignore_case: bool, *, begun: bool
) -> list[Finding]:
    """A pattern without a table is a typing error or a missing grant: the catalogue shows only what the user may see."""
    findings = []
    for pattern in patterns:
        matches = match_tables([pattern], exclude, ignore_case=ignore_case)
        if not any(matches(table) for table in found):
            remedy = (
                "check its spelling and case, what is excluded, and that the user may SELECT; system databases and views are never captured"
            )
            # One that is away may come back.
            findings.append(Finding("no-table", Level.WARNING if begun else Level.ERROR, f"no table matches {pattern}", remedy))
    return findings


def _buckets(config: PipelineConfig, ledger: Ledger) -> list[Finding]:
    """Tables that do not have as many buckets as new ones get. What can't be read is found by the run."""
    from snowmelt.engine.loop.resources import open_lake

    resting = (TablePhase.SET_ASIDE, TablePhase.GONE)
    sources = {table.target: table.incarnation.table for table in ledger.tables if table.keyed and table.phase not in resting}
    if not sources:
        return []
    settings = config.to_settings()
    lake = open_lake(settings)

    def differs(target: str) -> bool:
        try:
            return lake.describe(target).buckets != settings.sink.buckets
        except SnowmeltError:
            return False

    with ThreadPoolExecutor(lake.at_once) as pool:
        others = [target for target, found in zip(sources, pool.map(differs, sources), strict=True) if found]
    if not others:
        return []
    fact = f"lake tables keep another number of buckets than buckets: {settings.sink.buckets}, which is for new tables"
    remedy = f"`snowmelt rescale pipeline.yaml {others[0]} --buckets {settings.sink.buckets}` changes one"
    return [TableFinding("buckets", Level.WARNING, fact, remedy, tuple(sources[target] for target in others))]


def _folders(config: PipelineConfig) -> list[Finding]:
    """Those of this machine. What a bucket allows is found out by its first use."""
    from snowmelt.sinks.warehouse import plain_warehouse

    folders = {"state": config.pipeline.place(), "relay's spool": config.relay.spool}
    if config.sink.warehouse and "://" not in (warehouse := plain_warehouse(config.sink.warehouse)):
        folders["warehouse"] = Path(warehouse)
    return [finding for what, folder in folders.items() if isinstance(folder, Path) and (finding := _folder(what, folder)) is not None]


def _folder(what: str, folder: Path) -> Finding | None:
    """Whether it can be made, or something in it: tried, as no mode of a file says it for every file system and user."""
    try:
        above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        probe = above / f".snowmelt-{uuid.uuid4().hex}"
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError as error:
        why, remedy = os.strerror(error.errno or 0), "who owns it, is it mounted read-only, and is its path right?"
        if folder.is_dir():
            # What is in it already may be another's to allow.
            return Finding("folder", Level.WARNING, f"nothing new can be made in the {what}'s folder {folder}: {why}", remedy)
        return Finding("folder", Level.ERROR, f"the {what}'s folder {folder} can't be made: {why}", remedy)
    return None
