"""pipeline.yaml: what is read, and that every mistake is told with its line, once, and without secrets."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from snowmelt.cli.main import app
from snowmelt.cli.run import run
from snowmelt.commit.listeners import Period
from snowmelt.config.pipeline import (
    CompactionConfig,
    ExpireConfig,
    ListenerConfig,
    OrphansConfig,
    PipelineConfig,
    RelayConfig,
    RouteConfig,
    Run,
    SinkSection,
    read_pipeline,
)
from snowmelt.config.registry import source_of
from snowmelt.config.tiering import Fluss, Lake, TieringRun
from snowmelt.credentials import Secret
from snowmelt.databases.contract.capture import CaptureLimits
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.section import MySqlSource
from snowmelt.databases.mysql.types.columns import TimeAs, ZeroDates
from snowmelt.engine.driver.routes import SAME_NAME, Mode, Route, Router, assign_targets, check_goes_on, route_taken
from snowmelt.engine.driver.settings import MaintenanceSettings, Settings, SinkSettings
from snowmelt.engine.notices.calls import CommandListener, Webhook
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import FlussTarget, Login
from snowmelt.maintenance.compaction import CompactionRules
from snowmelt.maintenance.expiry import ExpiryRules
from snowmelt.maintenance.rules import MaintenanceRules
from snowmelt.model.partition import Unit
from snowmelt.model.patterns import match_tables
from snowmelt.model.table import TableId
from snowmelt.planning.facts import Incarnation
from snowmelt.planning.tables import Table, TablePhase
from snowmelt.relay.limits import Limits
from snowmelt.sections.document import FILE_BYTES_MAX, Section
from snowmelt.sinks.partitions import PartitionBy
from snowmelt.sinks.warehouse import Warehouse
from snowmelt.store.objects import BucketAddress
from tests.kit.sources import mysql_of

LEAST = """\
source:
  type: mysql
  host: db.example.com
  username: repl
  tables: [shop.*]
sink:
  type: paimon
  warehouse: lake
pipeline:
  name: shop-to-lake
  state: state
"""

FULL = """\
source:
  type: mysql
  host: db.example.com
  port: 3307
  username: repl
  password: ${DB_PASSWORD}
  tables: [shop.*, crm.customers]
  exclude: shop.tmp_*
  tls: verify-ca
  tls_ca: ca.pem
  tls_cert: /etc/client.pem
  tls_key: /etc/client.key
  connect_timeout: 1m
  server_id: 4711
  failover: gtid
  cascades: ignore
  zero_dates: string
  time_as: interval
sink:
  type: paimon
  warehouse: s3://lake/ods
  options:
    s3.endpoint: http://minio.example.com:9000
    s3.region: eu-central-1
    fs.s3.accessKeyId: ${S3_KEY}
    s3.secret-key: file:s3-secret
  buckets: 4
  tags: {period: day}
  partition_done: {delay: 90min}
routes:
  - {source: shop.orders, target: ods.orders, partition_by: "created_at:day"}
  - source: shop.*
    target: ods.{database}_{table}
listeners:
  - {type: webhook, name: hook, url: "${HOOK}", headers: {Authorization: "${TOKEN}", X-Team: data}, timeout: 2s}
  - {type: webhook, name: plain, url: "https://example.com/hook"}
  - {type: command, name: dbt, command: [dbt, build, --select, "tag:live"], timeout: 5m}
relay:
  disk_bytes_max: 1TiB
  spill_bytes_max: 8GiB
  prefilter_bytes: 4KiB
  assembly_bytes: 1MiB
  pool_bytes: 2MiB
  writers_bytes: 512MiB
spark:
  spark.master: spark://spark.example.com:7077
  spark.executor.memory: 2g
  spark.authenticate.secret: ${SPARK_SECRET}
pipeline:
  name: shop-to-lake
  state: /state/shop
  interval: 500ms
  rows_per_chunk: 50_000
  chunks_at_once: 8
  epoch_bytes: 64MiB
"""


def read(folder: Path, text: str | bytes) -> PipelineConfig:
    path = folder / "pipeline.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_pipeline(path)


def told(folder: Path, text: str | bytes) -> str:
    """The error of a file, without the folder before its name."""
    with pytest.raises(InvalidConfig) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


# ---- what is read


def test_all_but_the_necessary_keys_have_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path, LEAST).to_settings()
    defaults = Settings(name="", state=tmp_path, sink=SinkSettings(), source=settings.source, tables=())
    assert mysql_of(settings).options.port == 3306
    assert mysql_of(settings).options.password == Secret()
    assert mysql_of(settings).options.tls is Tls.PREFERRED
    assert (settings.pace.interval_s, settings.pace.epoch_bytes) == (defaults.pace.interval_s, defaults.pace.epoch_bytes)
    assert (settings.pace.rows_per_chunk, settings.pace.chunks_at_once) == (defaults.pace.rows_per_chunk, defaults.pace.chunks_at_once)
    assert (settings.sink.buckets, mysql_of(settings).types, mysql_of(settings).server_id) == (defaults.sink.buckets, MySql().types, None)
    assert (settings.exclude, settings.routes, settings.target, settings.sink.tags) == ((), (), SAME_NAME, None)
    assert settings.sink.done_delay_ms is None
    assert (settings.log.capture, settings.log.limits) == (defaults.log.capture, defaults.log.limits)


def test_every_key_reaches_the_engine(tmp_path: Path) -> None:
    config = read(tmp_path, FULL)
    settings = config.to_settings()
    source = mysql_of(settings).options
    assert (source.host, source.port, source.username, source.password) == ("db.example.com", 3307, "repl", Secret("${DB_PASSWORD}"))
    assert (source.tls, source.tls_ca) == (Tls.VERIFY_CA, str(tmp_path / "ca.pem"))
    assert (source.tls_cert, source.tls_key, source.connect_timeout_s) == ("/etc/client.pem", "/etc/client.key", 60.0)
    assert (settings.tables, settings.exclude) == (("shop.*", "crm.customers"), ("shop.tmp_*",))
    types = mysql_of(settings).types
    assert (mysql_of(settings).server_id, types.zero_dates, types.time_as) == (
        4711,
        ZeroDates.STRING,
        TimeAs.INTERVAL,
    )
    reached = {
        "s3.endpoint": "http://minio.example.com:9000",
        "s3.region": "eu-central-1",
        "s3.access-key": Secret("${S3_KEY}"),
        "s3.secret-key": Secret(f"file:{tmp_path}/s3-secret"),
    }
    assert (settings.sink.warehouse, settings.sink.buckets) == (Warehouse("s3://lake/ods", tuple(reached.items())), 4)
    assert settings.sink.tags is Period.DAY
    assert settings.sink.done_delay_ms == 5_400_000
    assert config.spark == {
        "spark.master": "spark://spark.example.com:7077",
        "spark.executor.memory": "2g",
        "spark.authenticate.secret": Secret("${SPARK_SECRET}"),
    }
    assert (config.master(None), config.master("local[2]")) == ("spark://spark.example.com:7077", "local[2]")
    assert settings.routes == (
        Route("shop.orders", "ods.orders", partition=PartitionBy("created_at", Unit.DAY)),
        Route("shop.*", "ods.{database}_{table}"),
    )
    assert (settings.name, settings.state, settings.pace.interval_s) == ("shop-to-lake", Path("/state/shop"), 0.5)
    assert (settings.pace.rows_per_chunk, settings.pace.chunks_at_once, settings.pace.epoch_bytes) == (50_000, 8, 64 << 20)
    assert settings.log.capture == CaptureLimits(disk_bytes_max=1 << 40)
    assert settings.log.limits == Limits(
        writers_bytes=512 << 20,
        prefilter_bytes=4096,
        assembly_bytes=1 << 20,
        pool_bytes=2 << 20,
        spill_bytes_max=8 << 30,
        unpacked_bytes_max=8 << 30,
    )
    assert settings.log.failover
    assert settings.listeners == (
        Webhook("hook", Secret("${HOOK}"), (("Authorization", Secret("${TOKEN}")), ("X-Team", "data")), 2.0),
        Webhook("plain", "https://example.com/hook"),
        CommandListener("dbt", ("dbt", "build", "--select", "tag:live"), 300.0),
    )


@pytest.mark.parametrize(
    ("listener", "error"),
    [
        ("{type: webhook, name: a}", "listeners[1]: needs url, because its type is webhook"),
        ("{type: command, name: a}", "listeners[1]: needs command, because its type is command"),
        ("{type: command, name: a, command: []}", "listeners[1]: command: found nothing; allowed is a list of a program"),
        ("{type: command, name: a, command: x}", "listeners[1].command: found text that is not repeated here; allowed is a list"),
        ("{type: webhook, name: a, command: [x], url: 'http://a/'}", "listeners[1]: command does not go with the type webhook"),
        ("{type: command, name: a, command: [x], headers: {a: b}}", "listeners[1]: headers does not go with the type command"),
        ("{type: mail, name: a}", "listeners[1].type: found 'mail'; allowed is webhook, command"),
        ("{type: command, command: [x]}", "listeners[1].name is missing"),
        (
            "{type: webhook, name: a, url: 'http://me:hunter2@a/'}",
            "listeners[1].url: found text that is not repeated here; allowed is https://",
        ),
        ("{type: webhook, name: a, url: 'http://a/?token=hunter2'}", "listeners[1].url: found text that is not repeated here"),
        ("{type: webhook, name: a, url: 'ftp://a/'}", "listeners[1].url: found text that is not repeated here"),
        ("{type: command, name: a, command: [x], timeout: 2h}", "listeners[1].timeout: found '2h'; allowed is a number with its unit from"),
        ("{type: command, name: a, command: [x]}, {type: command, name: a, command: [y]}", "listeners: two have the name a"),
    ],
)
def test_a_listener_that_can_not_be_called_is_told(tmp_path: Path, listener: str, error: str) -> None:
    text = told(tmp_path, LEAST + f"listeners: [{listener}]\n")
    assert error in text
    assert "hunter2" not in text


@pytest.mark.parametrize("key", ["prefilter_bytes", "pool_bytes", "assembly_bytes"])
def test_a_segment_below_one_page_is_refused(tmp_path: Path, key: str) -> None:
    text = told(tmp_path, LEAST + f"relay:\n  {key}: 4095B\n")
    assert f"relay.{key}" in text
    assert "from 4KiB to" in text


def test_relative_paths_are_of_the_files_folder_whatever_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LEAST.replace("username: repl", "username: repl\n  password: file:secret")
    (tmp_path / "elsewhere").mkdir()
    read(tmp_path, text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings = read_pipeline("../pipeline.yaml").to_settings()
    assert settings.state.is_absolute()
    assert settings.state.resolve() == tmp_path / "state"
    assert Path(str(settings.sink.warehouse)).resolve() == tmp_path / "lake"
    assert Path(mysql_of(settings).options.password.reference.removeprefix("file:")).resolve() == tmp_path / "secret"


def test_fluss_stands_for_a_warehouse(tmp_path: Path) -> None:
    text = LEAST.replace("type: paimon\n  warehouse: lake", "type: fluss\n  bootstrap: a:9123, b:9123")
    assert read(tmp_path, text).to_settings().sink.fluss == FlussTarget("a:9123,b:9123")
    settings = read(tmp_path, text.replace("b:9123", "b:9123\n  tiered: no\n  freshness: 10s")).to_settings()
    assert settings.sink.fluss == FlussTarget("a:9123,b:9123", tiered=False, freshness_s=10.0)
    settings = read(tmp_path, text.replace("b:9123", "b:9123\n  username: snow\n  password: ${FLUSS}")).to_settings()
    assert settings.sink.fluss == FlussTarget("a:9123,b:9123", login=Login("snow", Secret("${FLUSS}")))
    assert read(tmp_path, LEAST).to_settings().sink.fluss is None


def test_a_socket_stands_for_a_host(tmp_path: Path) -> None:
    settings = read(tmp_path, LEAST.replace("host: db.example.com", "socket: /run/mysqld.sock")).to_settings()
    assert mysql_of(settings).options.socket == "/run/mysqld.sock"


@pytest.mark.parametrize("word", ["no", "null_and_void", "1:30", "0x1F", "2020-01-01", "on", "1e3"])
def test_text_that_yaml_would_guess_a_meaning_for_stays_text(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, LEAST.replace("username: repl", f"username: {word}")).source.model_dump()["username"] == word


def test_the_word_null_is_a_choice_where_it_is_one(tmp_path: Path) -> None:
    assert (
        read(tmp_path, LEAST.replace("username: repl", "username: repl\n  zero_dates: null")).source.model_dump()["zero_dates"]
        is ZeroDates.NULL
    )


def test_anchors_that_are_few_are_fine(tmp_path: Path) -> None:
    text = LEAST.replace("tables: [shop.*]", "tables: &all [shop.*]\n  exclude: *all")
    assert read(tmp_path, text).source.exclude == ("shop.*",)


def test_a_description_can_neither_be_changed_nor_shows_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    config = read(tmp_path, FULL)
    with pytest.raises(ValueError, match="frozen"):
        config.sink.buckets = 7  # type: ignore[misc]
    settings = config.to_settings()
    assert mysql_of(settings).options.password.reveal() == "hunter2"
    for text in (repr(config), str(config), repr(settings), str(config.model_dump())):
        assert "hunter2" not in text
    assert b"hunter2" not in pickle.dumps(settings)


# ---- what is wrong


@pytest.mark.parametrize(
    ("change", "by", "error"),
    [
        ("  host: db", "  hots: db", "pipeline.yaml:3: source.hots: no such key; known are type, host, port, "),
        ("  host: db", "  hostname: db", "(hint: did you mean host?)"),
        ("  host: db", "  hots: db", "(hint: did you mean host?)"),
        ("  host: db", "  interval: 5s\n  host: db", "pipeline.yaml:3: source.interval: no such key; "),
        ("  host: db", "  interval: 5s\n  host: db", "(hint: interval belongs under pipeline)"),
        (
            "sink:",
            "zink:",
            "pipeline.yaml:6: zink: no such key; known are source, sink, routes, listeners, relay, maintenance, spark, pipeline "
            "(hint: did you mean sink?)",
        ),
        ("  username: repl\n", "", "pipeline.yaml:1: source.username is missing"),
        ("pipeline:\n  name: shop-to-lake\n  state: state\n", "", "pipeline.yaml:1: pipeline is missing"),
        ("  name: shop-to-lake\n", "", "pipeline.yaml:9: pipeline.name is missing"),
        ("  type: mysql", "  type: oracle", "pipeline.yaml:2: source.type: found 'oracle'; allowed is mysql (for MariaDB too)"),
        ("  type: paimon", "  type: delta", "pipeline.yaml:7: sink.type: found 'delta'; allowed is paimon, fluss"),
        ("  host: db.example.com", "  port: 3306", "pipeline.yaml:1: source: needs either host or socket"),
        ("username: repl", "username: repl\n  port: 70000", "pipeline.yaml:5: source.port: found '70000'; allowed is a whole number from"),
        ("username: repl", "username: repl\n  port: [1]", "pipeline.yaml:5: source.port: found a list; allowed is a whole number"),
        ("username: repl", "username:", "pipeline.yaml:4: source.username: found nothing; allowed is text"),
        ("username: repl", "username: repl\n  tls: always", "source.tls: found 'always'; allowed is disabled, preferred, required"),
        ("username: repl", "username: repl\n  tls: verify-ca", "pipeline.yaml:1: source: tls: verify-ca needs tls_ca"),
        ("username: repl", "username: repl\n  connect_timeout: 5", "source.connect_timeout: found '5'; allowed is a number with its unit"),
        ("[shop.*]", "[]", "pipeline.yaml:5: source.tables: found nothing; allowed is at least one pattern"),
        ("[shop.*]", "[shop.*, orders]", "pipeline.yaml:5: source.tables[2]: a table pattern must be database.table: 'orders'"),
        (
            "[shop.*]",
            "[shop.\\.*]",
            "source.tables[1]: found 'shop.\\\\.*'; allowed is a pattern as shop.* with * and ?; it is no regular",
        ),
        ("[shop.*]", "{a: b}", "pipeline.yaml:5: source.tables: found a mapping; allowed is a list"),
        ("  warehouse: lake", "  warehouse: lake\n  buckets: 0", "sink.buckets: found '0'; allowed is a whole number from 1 to 10000"),
        ("  warehouse: lake\n", "", "pipeline.yaml:6: sink: needs warehouse, because its type is paimon"),
        ("  warehouse: lake", "  bootstrap: a:1\n  warehouse: lake", "pipeline.yaml:6: sink: bootstrap does not go with the type paimon"),
        ("type: paimon\n  warehouse: lake", "type: fluss\n  bootstrap: here", "sink.bootstrap: found 'here'"),
        ("  warehouse: lake", "  warehouse: lake\n  username: a", "pipeline.yaml:6: sink: username does not go with the type paimon"),
        (
            "  warehouse: lake",
            "  warehouse: lake\n  tags: {period: week}",
            "pipeline.yaml:9: sink.tags.period: found 'week'; allowed is hour, day",
        ),
        (
            "  warehouse: lake",
            "  warehouse: lake\n  tags: day",
            "yaml:9: sink.tags: found text that is not repeated here; allowed is a mapping of period",
        ),
        (
            "  type: paimon\n  warehouse: lake",
            "  type: fluss\n  bootstrap: a:1\n  tags: {period: day}",
            "sink: tags does not go with the type fluss",
        ),
        (
            "  type: paimon\n  warehouse: lake",
            "  type: fluss\n  bootstrap: a:1\n  partition_done: {delay: 1h}",
            "sink: partition_done does not go with the type fluss",
        ),
        (
            "  warehouse: lake",
            "  warehouse: lake\n  partition_done: {delay: soon}",
            "pipeline.yaml:9: sink.partition_done.delay: found 'soon'",
        ),
        (
            "sink:\n  type: paimon\n  warehouse: lake\n",
            "routes:\n- {source: a.b, target: c.d, partition_by: region}\nsink:\n  type: fluss\n  bootstrap: a:1\n",
            "routes[1].partition_by does not go with the sink fluss, whose tables have no partitions",
        ),
        ("sink:", "routes:\n- {source: a.b, target: c.d, partition_by: 'at:week'}\nsink:", "partition_by can't be read: 'at:week'"),
        ("type: paimon\n  warehouse: lake", "type: fluss\n  bootstrap: a:1\n  username: a", "sink: a login to Fluss lacks its password"),
        (
            "type: paimon\n  warehouse: lake",
            "type: fluss\n  bootstrap: a:1\n  username: a\n  password: hunter2",
            "sink.password: a secret must be given by reference",
        ),
        (
            "type: paimon\n  warehouse: lake",
            "type: fluss\n  bootstrap: me:word@here:1",
            "sink.bootstrap: found text that is not repeated here",
        ),
        (
            "type: paimon\n  warehouse: lake",
            "type: fluss\n  buckets: 2",
            "yaml:6: sink: needs bootstrap, because its type is fluss",
        ),
        (
            "sink:\n  type: paimon\n  warehouse: lake\n",
            "routes:\n- {source: a.b, target: c.d, mode: changelog}\nsink:\n  type: fluss\n  bootstrap: a:1\n",
            "routes[1].mode: changelog does not go with the sink fluss",
        ),
        ("  warehouse: lake", "  warehouse: ftp://lake", "sink.warehouse: no store has the scheme 'ftp'"),
        ("  warehouse: lake", "  warehouse: lake\n  options: {s3.region: x}", "sink: options are for a warehouse in an S3 bucket"),
        ("  warehouse: lake", "  warehouse: s3://b/l\n  options: {s3.secret-key: hunter2}", "must be given by reference: s3.secret-key"),
        ("  warehouse: lake", "  warehouse: s3://b/l\n  options: {s3.secret: '${X}'}", "option of the warehouse is not known: s3.secret ("),
        ("  warehouse: lake", "  warehouse: s3://b/l\n  options: {s3.endpoint: 'http://a:b@c'}", "may hold credentials: s3.endpoint"),
        (
            "  warehouse: lake",
            "  warehouse: s3://b/l\n  options: {s3.access-key: '${X}', s3a.access.key: '${X}'}",
            "is given twice: s3a.access.key is s3.access-key",
        ),
        (
            "type: paimon\n  warehouse: lake",
            "type: fluss\n  bootstrap: a:1\n  options: {s3.region: x}",
            "options does not go with the type fluss",
        ),
        ("sink:", "spark: x\nsink:", "pipeline.yaml:6: spark: found text that is not repeated here; allowed is a mapping as"),
        ("sink:", "spark: {executor.memory: 2g}\nsink:", "spark: found 'executor.memory'; allowed is a name of Spark's as"),
        ("sink:", "spark: {spark.executor.memory: [2g]}\nsink:", "spark: found a list; allowed is text, for spark.executor.memory"),
        ("sink:", "spark: {spark.scheduler.mode: FIFO}\nsink:", "spark: spark.scheduler.mode is snowmelt's to set; its tasks rely on it"),
        ("sink:", "spark: {spark.ui.enabled: 'true'}\nsink:", "spark: spark.ui.enabled is snowmelt's to set; use --ui instead"),
        (
            "sink:",
            "spark: {spark.authenticate.secret: hunter2}\nsink:",
            "spark: found text that is not repeated here; allowed is ${NAME} or",
        ),
        ("name: shop-to-lake", "name: shop to lake", "pipeline.yaml:10: pipeline.name: found 'shop to lake'; allowed is letters, digits"),
        ("state: state", "state: memory://", "pipeline.yaml:11: pipeline.state: found 'memory://'; allowed is a path, or an address"),
        ("state: state", "state: state\n  state_options: {region: x}", "pipeline: state_options are for a state in a bucket"),
        (
            "state: state",
            "state: s3://b/p\n  state_options: x",
            "state_options: found text that is not repeated here; allowed is a",
        ),
        (
            "state: state",
            "state: s3://b/p\n  state_options: {region: [x]}",
            "state_options: found a list; allowed is text, for region",
        ),
        ("state: state", "state: s3://b/p\n  state_options: {token: hunter2}", "by reference: token (hint: write ${NAME} or file:/path"),
        ("state: state", "state: s3://b/p\n  state_options: {nonsense: '${X}'}", "an option that is not known: s3: one of nonsense"),
        ("state: state", "state: s3://b/p\n  state_options: {endpoint: 'http://a:b@c'}", "may hold credentials"),
        ("state: state", "state: state\n  interval: 5", "pipeline.interval: found '5'; allowed is a number with its unit from 100ms to 1h"),
        ("state: state", "state: state\n  interval: 1ms", "pipeline.interval: found '1ms'; allowed is a number with its unit from 100ms"),
        ("state: state", "state: state\n  rows_per_chunk: -1", "pipeline.rows_per_chunk: found '-1'; allowed is a whole number from"),
        ("sink:", "routes: nowhere\nsink:", "pipeline.yaml:6: routes: found text that is not repeated here; allowed is a list"),
        ("sink:", "routes:\n  - shop\nsink:", "pipeline.yaml:7: routes[1]: found text that is not repeated here; allowed is a mapping of"),
        ("sink:", "routes:\n- {source: a.b}\nsink:", "pipeline.yaml:7: routes[1].target is missing"),
        (
            "sink:",
            "routes:\n- {source: a.b, sink-table: c.d}\nsink:",
            "routes[1].sink-table: no such key; known are source, target, mode, partition_by",
        ),
        ("sink:", "routes:\n- {source: a.b, target: orders}\nsink:", "yaml:7: routes[1]: a target must be database.table: 'orders'"),
        ("sink:", 'routes:\n- {source: a.b, target: "o.{schema}"}\nsink:', "routes[1]: a target must be database.table: 'o.{schema}'"),
        ("sink:\n", "sink: paimon\nwhy:\n", "pipeline.yaml:6: sink: found text that is not repeated here; allowed is a mapping of type"),
    ],
)
def test_a_mistake_is_told_with_its_line_its_key_what_was_found_and_what_is_allowed(
    tmp_path: Path, change: str, by: str, error: str
) -> None:
    assert change in LEAST
    assert error in told(tmp_path, LEAST.replace(change, by, 1))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "pipeline.yaml: empty (hint: `snowmelt run --help` shows an example)"),
        ("\n# nothing\n", "pipeline.yaml: empty (hint: `snowmelt run --help` shows an example)"),
        (
            "- a\n",
            "pipeline.yaml:1: found a list; allowed is a mapping of source, sink, routes, listeners, relay, maintenance, spark, pipeline",
        ),
        (
            "\nhunter2\n",
            "pipeline.yaml:2: found text; allowed is a mapping of source, sink, routes, listeners, relay, maintenance, spark, pipeline",
        ),
        ("source:\n\ttype: mysql\n", "pipeline.yaml:2: a tab; YAML is indented with spaces"),
        ("source:\n  type:\n  \t- mysql\n", "pipeline.yaml:3: a tab; YAML is indented with spaces"),
        ("source:\n  host: a\n  port: 1\n  host: b\n", "pipeline.yaml:4: source.host is given twice; the first is in line 2"),
        ("a: 1\nb: 2\na: 1\n", "pipeline.yaml:3: a is given twice; the first is in line 1"),
        ("a: 1\n---\nb: 2\n", "pipeline.yaml:2: not YAML: more than one document in a file"),
        ("source: {a: [1}\n", "pipeline.yaml:1: not YAML: expected ',' or ']', but got '}'"),
        ('a: 1\nb: "open\n', "pipeline.yaml:3: not YAML: a quote or bracket that is not closed"),
        ("source:\n  tables: [*.*]\n", "pipeline.yaml:2: not YAML: text that begins with * or & needs quotes"),
        ("source:\n  username: @me\n", "pipeline.yaml:2: not YAML: text that begins with one of @ ` % & * ! needs quotes"),
        ("source:\n  tables: !!python/name:os.system x\n", "pipeline.yaml:2: source.tables: a tag, which has no meaning here; text that"),
        ("a: 1\nb: \x01\n", "pipeline.yaml:2: a character that YAML does not allow"),
        (b"a: 1\nb: \xff\n", "pipeline.yaml:2: not UTF-8"),
        ("? [a]\n: b\n", "pipeline.yaml:1: pipeline.yaml: a key that is not text"),
        ("a: " + "[" * 30 + "]" * 30, "pipeline.yaml:1: nested deeper than 20"),
        ("a: " + "[" * 100_000, "pipeline.yaml:1: nested deeper than 20"),
        ("a: &a [*a]", "pipeline.yaml:1: nested deeper than 20"),
        ("#" * (FILE_BYTES_MAX + 1), "pipeline.yaml: larger than 1 MiB (hint: is it the right file?)"),
    ],
)
def test_what_is_no_description_at_all_gives_one_clear_line(tmp_path: Path, text: str | bytes, error: str) -> None:
    line = told(tmp_path, text)
    assert line.startswith(error)
    assert "\n" not in line
    assert "hunter2" not in line


def test_aliases_that_unfold_to_billions_are_refused_at_once(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert "more than 20000 values, with all aliases unfolded" in told(tmp_path, bomb)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"pipeline.yaml can't be read: No such file"):
        read_pipeline(tmp_path / "pipeline.yaml")
    with pytest.raises(InvalidConfig, match="can't be read: Is a directory"):
        read_pipeline(tmp_path)


def test_all_mistakes_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = LEAST.replace("name: shop-to-lake", "name: ").replace("host:", "hots:").replace("type: paimon", "type: hudi")
    lines = told(tmp_path, text).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["pipeline.yaml:3", "pipeline.yaml:7", "pipeline.yaml:10"]


@pytest.mark.parametrize(
    "line",
    [
        "password: hunter2",
        "password: '12345hunter2'",
        "password: *hunter2",
        "password: !hunter2",
        "password: !hunter2 x",
        "password: &hunter2",
        "password: [hunter2]",
        "password: {hunter2: hunter2}",
        "password: hunter2: hunter2",
        "password: '${hunter2'",
        "password: |\n    hunter2",
        'password: "hunter2',
        "password: %hunter2",
        "password: @hunter2",
        "passwort: hunter2",
        "password: ${DB_PASSWORD}\n  password: hunter2",
        "password: ${DB_PASSWORD}\n  secret:\n    password: hunter2",
        "password: ${DB_PASSWORD}\n hunter2",
    ],
)
def test_a_password_in_the_clear_is_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    error = told(tmp_path, LEAST.replace("  username: repl", f"  username: repl\n  {line}"))
    assert "hunter2" not in error
    assert error.startswith("pipeline.yaml:")


@pytest.mark.parametrize("key", ["warehouse", "state"])
def test_an_address_with_credentials_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    text = LEAST.replace(f"{key}: {'lake' if key == 'warehouse' else 'state'}", f"{key}: s3://me:hunter2@lake/ods")
    error = told(tmp_path, text)
    assert f".{key}: the store's address has more than a bucket and a prefix" in error
    assert "hunter2" not in error


def test_plain_text_is_told_how_to_be_a_reference(tmp_path: Path) -> None:
    error = told(tmp_path, LEAST.replace("  username: repl", "  username: repl\n  password: hunter2"))
    assert error == (
        "pipeline.yaml:5: source.password: a secret must be given by reference "
        "(hint: write ${NAME} for an environment variable or file:/path for a file)"
    )


# ---- routes


def targets(routes: list[Route], *tables: str, default: str = SAME_NAME, ignore_case: bool = False) -> dict[str, str]:
    ids = [TableId(*table.split(".", 1)) for table in tables]
    found, refused = assign_targets(ids, routes, default=default, ignore_case=ignore_case)
    for error in refused.values():
        raise error
    return {str(table): target.name for table, target in found.items()}


def test_the_first_route_that_matches_wins_and_others_keep_their_name() -> None:
    routes = [Route("shop.orders", "ods.o"), Route("shop.*", "ods.{database}_{table}"), Route("shop.names", "never.used")]
    assert targets(routes, "shop.orders", "shop.names", "crm.people") == {
        "shop.orders": "ods.o",
        "shop.names": "ods.shop_names",
        "crm.people": "crm.people",
    }


def test_a_route_matches_as_the_server_compares_names() -> None:
    routes = [Route("Shop.Orders", "ods.o")]
    assert targets(routes, "shop.orders") == {"shop.orders": "shop.orders"}
    assert targets(routes, "shop.orders", ignore_case=True) == {"shop.orders": "ods.o"}


@pytest.mark.parametrize("routes", [[Route("shop.orders_*", "ods.orders")], [Route("shop.orders_1", "shop.orders_2")]])
def test_two_tables_into_one_are_refused_by_name(routes: list[Route]) -> None:
    with pytest.raises(InvalidConfig, match=r"two tables would go to .*: shop.orders_1 and shop.orders_2 \(hint: several tables into one"):
        targets(routes, "shop.orders_2", "shop.orders_1")


@pytest.mark.parametrize(
    "table", ["shop.with.dot", "shop.with space", "shop.a/b", "shop.a:b", "shop.a$snapshots", "shop.{table}", "shop.late\x01x", "shop.\x7f"]
)
def test_a_name_that_the_lake_would_misread_is_refused(table: str) -> None:
    with pytest.raises(InvalidConfig, match="can't go to a lake table of that name"):
        targets([], table)
    assert targets([Route("shop.*", "ods.orders")], table) == {table: "ods.orders"}


def test_a_name_that_is_too_long_for_a_file_is_refused() -> None:
    # Each is short enough for the server, whose limit is in characters; a route makes one name of both.
    long = "\u6f22" * 43
    with pytest.raises(InvalidConfig, match="can't go to a lake table of that name"):
        targets([Route("*.*", "ods.{database}_{table}")], f"{long}.{long}")
    assert targets([], f"{long}.{long}") == {f"{long}.{long}": f"{long}.{long}"}


def test_a_table_is_captured_and_goes_to_its_target_for_as_long_as_its_state_lives() -> None:
    tables = [
        Table(incarnation=Incarnation(TableId("shop", name), 1), target=f"ods.{name}", keyed=True, schema=1) for name in ("orders", "names")
    ]

    def check(route: Route, *exclude: str) -> None:
        router = Router([route], default="ods.{table}", ignore_case=False)
        check_goes_on(tables, match_tables(["shop.*"], exclude), router)

    check(Route("shop.others", "ods.elsewhere"), "shop.others")
    with pytest.raises(InvalidConfig, match=r"shop.orders goes to another .*: ods.orders \(upsert\) so far, ods.other \(upsert\) now"):
        check(Route("shop.orders", "ods.other"))
    with pytest.raises(InvalidConfig, match=r"ods.orders \(upsert\) so far, ods.orders \(changelog\) now"):
        check(Route("shop.orders", "ods.orders", Mode.CHANGELOG))
    with pytest.raises(InvalidConfig, match=r"not captured any more: shop\.names"):
        check(Route("shop.others", "ods.elsewhere"), "shop.names")
    tables[1].phase = TablePhase.GONE
    check(Route("shop.others", "ods.elsewhere"), "shop.names")
    # Of one that is set aside nothing is captured anyway.
    tables[0].phase = TablePhase.SET_ASIDE
    check(Route("shop.others", "ods.elsewhere"), "shop.orders")


def test_a_route_says_what_its_lake_tables_hold(tmp_path: Path) -> None:
    routes = ["{source: shop.events, target: ods.events_log, mode: changelog}", "{source: 'shop.*', target: 'ods.{table}'}"]
    text = LEAST + "routes:\n" + "".join(f"  - {route}\n" for route in routes)
    assert [route.mode for route in read(tmp_path, text).to_settings().routes] == [Mode.CHANGELOG, Mode.UPSERT]
    assert "routes[1].mode: found 'history'; allowed is upsert, changelog" in told(tmp_path, text.replace("changelog", "history"))


# ---- what users are told


def test_a_state_in_a_bucket_has_its_secrets_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    example = guide.partition("### State in a bucket\n\n```yaml\n")[2].partition("```")[0]
    monkeypatch.delenv("S3_SECRET", raising=False)
    config = read(tmp_path, LEAST.partition("pipeline:\n")[0] + "relay:\n  spool: spool\n" + example)
    settings = config.to_settings()
    options = (("region", "eu-central-1"), ("access_key_id", Secret("${S3_KEY}")), ("secret_access_key", Secret("${S3_SECRET}")))
    assert settings.state == BucketAddress("s3://lake/_snowmelt/shop", options)
    assert (settings.log_folder, settings.log.spool) == (None, tmp_path / "spool")
    assert pickle.loads(pickle.dumps(settings)) == settings
    for address in ("gs://bucket/state", "az://container/state"):
        assert str(read(tmp_path, LEAST.replace("state: state", f"state: {address}")).to_settings().state) == address


def test_the_guide_has_every_key_and_its_example_and_that_of_the_help_are_right(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    example = guide.partition("```yaml\n")[2].partition("```")[0]
    assert read(tmp_path, example).source.tables == ("shop.*", "crm.customers")
    helped = inspect.cleandoc(run.__doc__ or "").partition("\b\n")[2]
    assert read(tmp_path, helped).pipeline.name == "shop-to-lake"
    sections: dict[str, type[Section]] = {
        "source": MySqlSource,
        "sink": SinkSection,
        "routes": RouteConfig,
        "listeners": ListenerConfig,
        "pipeline": Run,
        "relay": RelayConfig,
    }
    for name, section in sections.items():
        told = guide.partition(f"### {name}\n")[2].partition("\n##")[0]
        first_cells = {cell for line in told.splitlines() if line.startswith("|") for cell in line.split("|")[1].split("`")}
        # Routes are told of in sentences.
        assert [key for key in section.model_fields if (f"`{key}`" not in told if name == "routes" else key not in first_cells)] == [], name
    told = guide.partition("### tiering.yaml\n")[2].partition("\n##")[0]
    of_tiering: tuple[type[Section], ...] = (Fluss, Lake, TieringRun)
    assert [key for section in of_tiering for key in section.model_fields if f"`{key}`" not in told] == []
    told = guide.partition("### maintenance\n")[2].partition("\n##")[0]
    groups: dict[str, type[Section]] = {"compaction": CompactionConfig, "expire": ExpireConfig, "orphans": OrphansConfig}
    keys = [f"`{group}`: `{key}`" for group, section in groups.items() for key in section.model_fields] + ["`enabled`", "`slots`"]
    assert [key for key in keys if f"| {key} |" not in told] == []


class TestMaintenance:
    ALL = "maintenance:\n  slots: 3\n  compaction: {runs_max: 5, file_bytes: 64MiB}\n  expire: {keep_for: 10m}\n"

    def test_it_is_on_and_has_defaults(self, tmp_path: Path) -> None:
        found = read(tmp_path, LEAST).to_settings().maintenance
        assert found == MaintenanceSettings(rules=replace(MaintenanceRules(), expiry=ExpiryRules(count_max=1000)))
        assert found.rules.enabled

    def test_keys_are_for_all_tables(self, tmp_path: Path) -> None:
        found = read(tmp_path, LEAST + self.ALL).to_settings().maintenance
        assert (found.slots, found.rules.compaction.runs_max, found.rules.compaction.file_bytes) == (3, 5, 64 << 20)
        assert (found.rules.expiry.age_ms, found.rules.compaction.size_amplification_percent) == (600_000, 50)

    def test_a_route_has_rules_of_its_own_and_the_rest_is_as_for_all(self, tmp_path: Path) -> None:
        routes = """
routes:
  - {source: "shop.audit", target: ods.audit, maintenance: {compaction: {runs_max: 9}, orphans: {older_than: 72h}}}
  - {source: "shop.big", target: ods.big, maintenance: {enabled: no}}
  - {source: "shop.*", target: "ods.{table}"}
"""
        settings = read(tmp_path, LEAST + self.ALL + routes).to_settings()
        audit, big, others = settings.routes
        assert audit.maintenance == replace(
            settings.maintenance.rules,
            compaction=CompactionRules(runs_max=9, file_bytes=64 << 20),
            orphan_age_ms=259_200_000,
        )
        assert big.maintenance == replace(settings.maintenance.rules, enabled=False)
        assert others.maintenance is None
        router = Router(settings.routes, default=SAME_NAME, ignore_case=False)
        assert (router.maintenance(TableId("shop", "audit")), router.maintenance(TableId("crm", "t"))) == (audit.maintenance, None)

    @pytest.mark.parametrize(
        ("keys", "error"),
        [
            ("compaction: {runs_max: 1}", "maintenance.compaction.runs_max: found '1'; allowed is a whole number from 2 to 1000"),
            ("expire: {keep_min: 9, keep_max: 8}", "maintenance.expire: keep_min is 9, more than keep_max: 8"),
            ("orphans: {older_than: 0s}", "maintenance.orphans.older_than: found '0s'"),
            ("compact: {}", "compact: no such key"),
        ],
    )
    def test_what_can_not_hold_is_refused(self, tmp_path: Path, keys: str, error: str) -> None:
        assert error in told(tmp_path, LEAST + f"maintenance:\n  {keys}\n")


def test_a_tables_route_is_found_though_it_is_not_known_whether_the_server_ignores_case() -> None:
    routes = [Route("Shop.Orders", "ods.big"), Route("shop.*", "ods.{table}")]
    orders = TableId("shop", "orders")
    assert route_taken(routes, orders, "ods.orders") == routes[1]
    assert route_taken(routes, orders, "ods.big") == routes[0]
    assert route_taken(routes, TableId("crm", "t"), "crm.t") is None


def test_routes_that_no_table_takes_are_told() -> None:
    first, second, third = Route("shop.orders", "ods.orders"), Route("shop.*", "ods.{table}"), Route("crm.*", "ods.crm_{table}")
    router = Router([first, second, third], default=SAME_NAME, ignore_case=False)
    assert router.idle([TableId("shop", "orders"), TableId("other", "t")]) == [second, third]


@pytest.mark.parametrize(
    ("change", "by", "error"),
    [
        ("  type: mysql\n", "", "pipeline.yaml:1: source.type is missing"),
        ("  type: mysql\n", "  type: [mysql]\n", "pipeline.yaml:2: source.type: found a list; allowed is mysql (for MariaDB too)"),
        (
            "source:\n",
            "source: mysql\nwhy:\n",
            "source: found text that is not repeated here; allowed is a mapping of type",
        ),
    ],
)
def test_a_source_without_a_kind_that_is_known_is_told_what_may_be_there(tmp_path: Path, change: str, by: str, error: str) -> None:
    assert change in LEAST
    assert error in told(tmp_path, LEAST.replace(change, by, 1))


def test_a_source_without_a_file_is_checked_as_one_in_a_file() -> None:
    given = {"type": "mysql", "host": "db", "username": "repl", "tables": ["shop.*"], "tls": "disabled"}
    assert source_of(given).database() == MySql(options=MySqlOptions(host="db", username="repl", tls=Tls.DISABLED))
    with pytest.raises(InvalidConfig, match="mysql"):
        source_of(given | {"type": "oracle"})
    with pytest.raises(InvalidConfig, match=r"tls: .*allowed is disabled, preferred"):
        source_of(given | {"tls": "perhaps"})
    with pytest.raises(InvalidConfig, match=r"tables\[2\]: a table pattern must be database.table: 'shop'"):
        source_of(given | {"tables": ["crm.*", "shop"]})


def test_check_takes_a_file_or_options_and_names_what_it_was_given_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(LEAST)
    answer = CliRunner().invoke(app, ["check", str(file), "--host", "elsewhere", "-x", "shop.tmp", "--json"])
    assert isinstance(answer.exception, InvalidConfig)
    assert answer.exception.fact == "check takes a file or --exclude, --host, not both"
