"""`pipeline.yaml`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from snowmelt.commit.listeners import Period
from snowmelt.config.registry import SOURCES, TYPES
from snowmelt.credentials import Secret
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.contract.section import SourceSection
from snowmelt.engine.driver.routes import SAME_NAME, Mode, Route
from snowmelt.engine.driver.settings import LogSettings, MaintenanceSettings, PaceSettings, Settings, SinkSettings
from snowmelt.engine.notices.calls import TIMEOUT_S, CommandListener, Listener, Webhook
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import FlussTarget, make_login
from snowmelt.maintenance.compaction import CompactionRules
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.relay.limits import Limits
from snowmelt.relay.retention import PREPARED_BYTES_MAX
from snowmelt.sections.document import Choice, Section, read_file
from snowmelt.sections.values import (
    BYTES,
    SECONDS,
    Address,
    Bootstrap,
    File,
    Name,
    Options,
    Password,
    Pattern,
    SparkEntries,
    State,
    Text,
    Url,
    YesNo,
    amount,
    from_error,
    one_of,
    whole_number,
)
from snowmelt.sinks.partitions import PartitionBy
from snowmelt.sinks.warehouse import Warehouse, warehouse_of
from snowmelt.store.objects import BucketAddress, check_options

Laid = TypeVar("Laid", bound=Section)


def read_pipeline(path: Path | str) -> PipelineConfig:
    """Read and check a file. Nothing else is asked for: no server, no environment, no secret's file."""
    return read_file(Path(path), PipelineConfig, "run")


class SinkType(StrEnum):
    PAIMON = "paimon"
    FLUSS = "fluss"


_NEEDED: Final = {SinkType.PAIMON: "warehouse", SinkType.FLUSS: "bootstrap"}
_ONLY_FLUSS: Final = ("bootstrap", "tiered", "freshness", "username", "password")
_ONLY_PAIMON: Final = ("options", "partition_done", "tags", "warehouse")


class Tags(Section):
    """Names for snapshots of the lake tables, so that readers find them and expiry leaves them."""

    period: Annotated[Period, one_of(Period)]


class PartitionDone(Section):
    """A mark for each partition of a day or a month, once its table's watermark has passed its end."""

    delay: Annotated[float, amount(SECONDS, "0s", "8760h", "1h or 30min")] = 0.0


class SinkSection(Section):
    """The lake, or Fluss in front of it."""

    type: Annotated[SinkType, one_of(SinkType)]
    warehouse: Address = ""
    options: Options = Field(default_factory=dict)
    """How a warehouse in a bucket is reached, in Paimon's words."""
    bootstrap: Bootstrap = ""
    username: Text = ""
    """Of Fluss, where it asks for a login."""
    password: Password = Secret()
    buckets: Annotated[int, whole_number(1, 10_000)] = 2
    tiered: Annotated[YesNo, one_of(YesNo)] = YesNo.YES
    """Whether a tiering service takes Fluss' tables on to the lake."""
    freshness: Annotated[float, amount(SECONDS, "1s", "24h", "10s or 3m")] | None = None
    tags: Tags | None = None
    partition_done: PartitionDone | None = None

    @model_validator(mode="after")
    def _fits(self) -> SinkSection:
        needed, given = _NEEDED[self.type], self.model_fields_set
        if needed not in given:
            raise PydanticCustomError("config", "{text}", {"text": f"needs {needed}, because its type is {self.type}"})
        wrong = given.intersection(_ONLY_FLUSS if self.type is SinkType.PAIMON else _ONLY_PAIMON)
        if wrong:
            raise PydanticCustomError("config", "{text}", {"text": f"{min(wrong)} does not go with the type {self.type}"})
        try:
            self.place()
            self.fluss()
        except InvalidConfig as error:
            raise from_error(error) from None
        return self

    def place(self) -> Warehouse:
        return warehouse_of(self.warehouse, self.options)

    def fluss(self) -> FlussTarget | None:
        if self.type is SinkType.PAIMON:
            return None
        return FlussTarget(self.bootstrap, self.tiered is YesNo.YES, self.freshness, make_login(self.username, self.password))


class CompactionConfig(Section):
    """Which files of a lake table are merged, and when."""

    runs_max: Annotated[int, whole_number(2, 1000)] = CompactionRules().runs_max
    size_amplification_percent: Annotated[int, whole_number(1, 10_000)] = CompactionRules().size_amplification_percent
    file_bytes: Annotated[float, amount(BYTES, "1MiB", "16GiB", "128MiB or 1GiB")] = float(CompactionRules().file_bytes)


class ExpireConfig(Section):
    """How many snapshots of a lake table are kept, and for how long."""

    keep_min: Annotated[int, whole_number(1, 1_000_000)] = ExpiryRules().count_min
    keep_max: Annotated[int, whole_number(1, 1_000_000)] = 1000
    keep_for: Annotated[float, amount(SECONDS, "0s", "8760h", "1h or 90min")] = ExpiryRules().age_ms / 1000

    @model_validator(mode="after")
    def _fits(self) -> ExpireConfig:
        if self.keep_min > self.keep_max:
            raise PydanticCustomError("config", "{text}", {"text": f"keep_min is {self.keep_min}, more than keep_max: {self.keep_max}"})
        return self


class OrphansConfig(Section):
    """Files that nothing refers to."""

    older_than: Annotated[float, amount(SECONDS, "1s", "8760h", "24h or 72h")] = MaintenanceRules().orphan_age_ms / 1000


class MaintenanceRulesConfig(Section):
    """How lake tables are kept small."""

    enabled: Annotated[YesNo, one_of(YesNo)] = YesNo.YES
    compaction: CompactionConfig = CompactionConfig()
    expire: ExpireConfig = ExpireConfig()
    orphans: OrphansConfig = OrphansConfig()

    def rules(self) -> MaintenanceRules:
        return MaintenanceRules(
            enabled=self.enabled is YesNo.YES,
            compaction=CompactionRules(
                runs_max=self.compaction.runs_max,
                size_amplification_percent=self.compaction.size_amplification_percent,
                file_bytes=int(self.compaction.file_bytes),
            ),
            expiry=ExpiryRules(count_min=self.expire.keep_min, count_max=self.expire.keep_max, age_ms=round(self.expire.keep_for * 1000)),
            orphan_age_ms=round(self.orphans.older_than * 1000),
        )


def laid_over(below: Laid, above: Section) -> Laid:
    """`below` with the keys that `above` was given."""
    given = {name: getattr(above, name) for name in above.model_fields_set}
    merged = {name: laid_over(getattr(below, name), value) if isinstance(value, Section) else value for name, value in given.items()}
    return below.model_copy(update=merged)


class MaintenanceConfig(MaintenanceRulesConfig):
    """The same, with what all tables share."""

    slots: Annotated[int, whole_number(1, 1024)] | None = None


class RouteConfig(Section):
    """Where the tables of a pattern go. The first route that matches a table wins."""

    source: Pattern
    target: Text
    mode: Annotated[Mode, one_of(Mode)] = Mode.UPSERT
    partition_by: Text | None = None
    """A column, or its day, month or value (`sinks.partitions`)."""
    maintenance: MaintenanceRulesConfig | None = None
    """Keys that are not given are as of all tables."""

    @model_validator(mode="after")
    def _fits(self) -> RouteConfig:
        try:
            self.route(MaintenanceConfig())
        except InvalidConfig as error:
            raise from_error(error) from None
        return self

    def route(self, of_all: MaintenanceConfig) -> Route:
        rules = None if self.maintenance is None else laid_over(of_all, self.maintenance).rules()
        partition = None if self.partition_by is None else PartitionBy.read(self.partition_by)
        return Route(self.source, self.target, self.mode, rules, partition)


class ListenerType(StrEnum):
    WEBHOOK = "webhook"
    COMMAND = "command"


_LISTENER_KEYS: Final = {ListenerType.WEBHOOK: ("url", "headers"), ListenerType.COMMAND: ("command",)}
"""By type: the key that it needs comes first."""


class ListenerConfig(Section):
    """A web server or a program that is told of each epoch that the lake has."""

    type: Annotated[ListenerType, one_of(ListenerType)]
    name: Name
    url: Url = ""
    headers: Options = Field(default_factory=dict)
    command: tuple[Text, ...] = ()
    timeout: Annotated[float, amount(SECONDS, "100ms", "1h", "10s or 5m")] = TIMEOUT_S

    @model_validator(mode="after")
    def _fits(self) -> ListenerConfig:
        given, known = self.model_fields_set, _LISTENER_KEYS[self.type]
        text = ""
        if known[0] not in given:
            text = f"needs {known[0]}, because its type is {self.type}"
        elif wrong := given.intersection(key for keys in _LISTENER_KEYS.values() for key in keys).difference(known):
            text = f"{min(wrong)} does not go with the type {self.type}"
        elif self.type is ListenerType.COMMAND and not self.command:
            text = "command: found nothing; allowed is a list of a program and its arguments"
        if text:
            raise PydanticCustomError("config", "{text}", {"text": text})
        return self

    def listener(self) -> Listener:
        if self.type is ListenerType.WEBHOOK:
            return Webhook(self.name, self.url, tuple(self.headers.items()), self.timeout)
        return CommandListener(self.name, self.command, self.timeout)


class Run(Section):
    """How it is done."""

    name: Name
    state: State
    state_options: Options = Field(default_factory=dict)
    interval: Annotated[float, amount(SECONDS, "100ms", "1h", "500ms, 5s or 1m")] = 5.0
    rows_per_chunk: Annotated[int, whole_number(100, 100_000_000)] = 500_000
    chunks_at_once: Annotated[int, whole_number(1, 1024)] | None = None
    epoch_bytes: Annotated[float, amount(BYTES, "1MiB", "64GiB", "64MiB or 1GiB")] = float(256 << 20)
    prepared_bytes: Annotated[float, amount(BYTES, "1MiB", "1024GiB", "512MiB or 4GiB")] = float(PREPARED_BYTES_MAX)

    @model_validator(mode="after")
    def _fits(self) -> Run:
        try:
            if isinstance(self.state, str):
                check_options(self.state, self.state_options)
            elif self.state_options:
                raise InvalidConfig("state_options are for a state in a bucket")
        except InvalidConfig as error:
            raise from_error(error) from None
        return self

    def place(self) -> Path | BucketAddress:
        return self.state if isinstance(self.state, Path) else BucketAddress(self.state, tuple(self.state_options.items()))


class RelayConfig(Section):
    """The captured log that the lake does not have yet."""

    disk_bytes_max: Annotated[float, amount(BYTES, "64MiB", "1024TiB", "16GiB or 1TiB")] = float(CaptureLimits().disk_bytes_max)
    spill_bytes_max: Annotated[float, amount(BYTES, "16MiB", "1TiB", "4GiB or 64GiB")] = float(Limits().spill_bytes_max)
    prefilter_bytes: Annotated[float, amount(BYTES, "4KiB", "1GiB", "8MiB or 64KiB")] = float(Limits().prefilter_bytes)
    assembly_bytes: Annotated[float, amount(BYTES, "4KiB", "1TiB", "16MiB or 1GiB")] = float(Limits().assembly_bytes)
    pool_bytes: Annotated[float, amount(BYTES, "4KiB", "1TiB", "64MiB or 1GiB")] = float(Limits().pool_bytes)
    writers_bytes: Annotated[float, amount(BYTES, "32MiB", "3GiB", "256MiB or 1GiB")] = float(Limits().writers_bytes)
    spool: File | None = None

    def limits(self) -> CaptureLimits:
        return CaptureLimits(disk_bytes_max=int(self.disk_bytes_max))

    def reading(self) -> Limits:
        return Limits(
            prefilter_bytes=int(self.prefilter_bytes),
            pool_bytes=int(self.pool_bytes),
            writers_bytes=int(self.writers_bytes),
            assembly_bytes=int(self.assembly_bytes),
            spill_bytes_max=int(self.spill_bytes_max),
            unpacked_bytes_max=int(self.spill_bytes_max),
        )


class PipelineConfig(Section):
    """A pipeline as its file describes it. Secrets are in it by reference only."""

    source: Annotated[SourceSection, Choice(SOURCES, TYPES)]
    sink: SinkSection
    routes: tuple[RouteConfig, ...] = ()
    listeners: tuple[ListenerConfig, ...] = ()
    relay: RelayConfig = RelayConfig()
    maintenance: MaintenanceConfig = MaintenanceConfig()
    spark: SparkEntries = Field(default_factory=dict)
    """Configuration entries of the Spark session."""
    pipeline: Run

    @model_validator(mode="after")
    def _fits(self) -> PipelineConfig:
        for number, route in enumerate(self.routes, 1):
            if self.sink.type is SinkType.FLUSS and route.mode is Mode.CHANGELOG:
                text = f"routes[{number}].mode: {route.mode} does not go with the sink {self.sink.type}, whose tables hold rows as they are"
                raise PydanticCustomError("config", "{text}", {"text": text})
            if self.sink.type is SinkType.FLUSS and route.partition_by is not None:
                text = f"routes[{number}].partition_by does not go with the sink {self.sink.type}, whose tables have no partitions"
                raise PydanticCustomError("config", "{text}", {"text": text})
        names = [listener.name for listener in self.listeners]
        if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
            raise PydanticCustomError("config", "{text}", {"text": f"listeners: two have the name {twice}"})
        return self

    def master(self, asked: str | None) -> str:
        """Where Spark runs: as the command line asks, or else as the file says."""
        given = self.spark.get("spark.master")
        return asked or (given if isinstance(given, str) else "local[*]")

    def to_settings(self) -> Settings:
        """What the engine wants to know."""
        return Settings(
            name=self.pipeline.name,
            state=self.pipeline.place(),
            source=self.source.database(),
            tables=self.source.tables,
            exclude=self.source.exclude,
            routes=tuple(route.route(self.maintenance) for route in self.routes),
            target=SAME_NAME,
            sink=SinkSettings(
                warehouse=self.sink.place(),
                fluss=self.sink.fluss(),
                buckets=self.sink.buckets,
                tags=self.sink.tags.period if self.sink.tags else None,
                done_delay_ms=round(self.sink.partition_done.delay * 1000) if self.sink.partition_done else None,
            ),
            listeners=tuple(listener.listener() for listener in self.listeners),
            pace=PaceSettings(
                interval_s=self.pipeline.interval,
                epoch_bytes=int(self.pipeline.epoch_bytes),
                rows_per_chunk=self.pipeline.rows_per_chunk,
                chunks_at_once=self.pipeline.chunks_at_once,
            ),
            log=LogSettings(
                capture=self.relay.limits(),
                limits=self.relay.reading(),
                prepared_bytes_max=int(self.pipeline.prepared_bytes),
                failover=self.source.fails_over,
                spool=Path(self.relay.spool) if self.relay.spool else None,
            ),
            maintenance=MaintenanceSettings(rules=self.maintenance.rules(), slots=self.maintenance.slots),
        )
