"""`pipeline.yaml`, and the file of a tiering service: read once, checked whole, and every error names its line.

Laws:
- An error is one line: file and line, the key, what was found, what is allowed. All errors of a file are told at once.
- What may be a secret is never repeated: not the value of a key that we don't know, nor an address that may hold credentials.
- Text is text. YAML's own guesses (`no` is false, `1:30` is ninety) are not made; a key's type decides how its text is read.
- A file has limits: its bytes, its depth, and how much its aliases unfold to.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from snowmelt.databases.mysql.capture import CaptureLimits
from snowmelt.databases.mysql.catalog import match_tables
from snowmelt.databases.mysql.columns import TimeAs, TypeOptions, ZeroDates
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.engine.routes import SAME_NAME, Mode, Route
from snowmelt.engine.settings import Settings
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import FlussTarget
from snowmelt.relay.limits import Limits
from snowmelt.relay.retention import PREPARED_BYTES_MAX
from snowmelt.secrets import Secret
from snowmelt.store.objects import Bucket, check_options
from snowmelt.tiering.leases import DURATION_MS

FILE_BYTES_MAX: Final = 1 << 20
NODES_MAX: Final = 20_000
DEPTH_MAX: Final = 20
FOUND_CHARACTERS_MAX: Final = 60

Place = tuple[str | int, ...]
"""Where something stands: keys and indexes from the top."""


# ---- values


def _refuse(value: object, allowed: str, *, secret: bool = False) -> PydanticCustomError:
    return PydanticCustomError("config", "{text}", {"text": f"found {_found(value, secret)}; allowed is {allowed}"})


def _found(value: object, secret: bool) -> str:
    """What was found, in a few words."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if secret:
        return "text that is not repeated here"
    text = str(value)
    return repr(text if len(text) <= FOUND_CHARACTERS_MAX else text[:FOUND_CHARACTERS_MAX] + "…")


def _from(known: InvalidConfig) -> PydanticCustomError:
    """An error that another module found in a value; its texts hold no secrets."""
    return PydanticCustomError("config", "{text}", {"text": str(known)})


def _text(allowed: str, pattern: str = r"\S(.*\S)?", *, secret: bool = False) -> BeforeValidator:
    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise _refuse(value, allowed, secret=secret)
        return value

    return BeforeValidator(read)


def _whole(low: int, high: int) -> BeforeValidator:
    def read(value: object) -> int:
        # As Python writes them, but without a sign: 100_000 is fine.
        if isinstance(value, str) and len(value) <= 20 and re.fullmatch(r"[0-9]+(_[0-9]+)*", value) and low <= int(value) <= high:
            return int(value)
        raise _refuse(value, f"a whole number from {low} to {high}")

    return BeforeValidator(read)


def _choice(kind: type[StrEnum], *left_out: StrEnum) -> BeforeValidator:
    allowed = [one.value for one in kind if one not in left_out]

    def read(value: object) -> StrEnum:
        # YAML's null is the word null here.
        word = "null" if value is None and "null" in allowed else value
        if not isinstance(word, str) or word not in allowed:
            raise _refuse(value, ", ".join(allowed))
        return kind(word)

    return BeforeValidator(read)


_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


def _amount(units: Mapping[str, float], low: str, high: str, examples: str) -> BeforeValidator:
    """A number with a unit."""
    least, most = _parse_amount(units, low), _parse_amount(units, high)

    def read(value: object) -> float:
        amount = _parse_amount(units, value) if isinstance(value, str) else None
        if amount is None or least is None or most is None or not least <= amount <= most:
            raise _refuse(value, f"a number with its unit from {low} to {high}, as {examples}")
        return amount

    return BeforeValidator(read)


def _parse_amount(units: Mapping[str, float], text: str) -> float | None:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]{1,3})", text)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


def _secret(value: object, info: ValidationInfo) -> Secret:
    if not isinstance(value, str):
        raise _refuse(value, "${NAME} for an environment variable, or file:/path", secret=True)
    try:
        secret = Secret(value)
    except InvalidConfig as error:
        raise _from(error) from None
    # A task has another working folder than the driver.
    return Secret(f"file:{_folder(info) / secret.reference.removeprefix('file:')}") if value.startswith("file:") else secret


def _path(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _refuse(value, "the path of a file")
    return str(_folder(info) / value)


def _address(value: object, info: ValidationInfo) -> str:
    """A path or the address of a bucket, without credentials."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise _refuse(value, "a path, or an address as s3://bucket/prefix", secret=True)
    try:
        if "://" in value:
            check_options(value, {})
            return value
    except InvalidConfig as error:
        raise _from(error) from None
    return str(_folder(info) / value)


def _state(value: object, info: ValidationInfo) -> Path | str:
    """A path, or the address of a bucket."""
    address = _address(value, info)
    if address.startswith("memory://"):
        raise _refuse(value, "a path, or an address as s3://bucket/prefix")
    if "://" in address and not address.startswith("file://"):
        return address
    return Path(address.removeprefix("file://"))


def _options(value: object, info: ValidationInfo) -> dict[str, str | Secret]:
    """Options of a store; what is a reference is a secret."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _refuse(value, "a mapping as {region: eu-central-1, secret_access_key: ${S3_SECRET}}", secret=True)
    found: dict[str, str | Secret] = {}
    for name, text in value.items():
        if not isinstance(text, str):
            raise _refuse(text, f"text, for {name}", secret=True)
        found[name] = _secret(text, info) if text.startswith(("${", "file:")) else text
    return found


def _folder(info: ValidationInfo) -> Path:
    folder: Path = (info.context or {})["folder"]
    return folder


def _bootstrap(value: object) -> str:
    addresses = value.split(",") if isinstance(value, str) else value
    if not isinstance(addresses, list) or not addresses:
        raise _refuse(value, "host:port of a Fluss server, or several", secret=True)
    found = [str(one).strip() for one in addresses]
    if not all(re.fullmatch(r"([^\s:,@/]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}", one) for one in found):
        raise _refuse(value, "host:port of a Fluss server, or several", secret=True)
    return ",".join(found)


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise _refuse(value, "a pattern as shop.*")
    if "\\" in value:
        raise _refuse(value, "a pattern as shop.* with * and ?; it is no regular expression")
    try:
        match_tables([value])
    except InvalidConfig as error:
        raise _from(error) from None
    return value


def _some(value: object) -> object:
    """One is a list of one."""
    if value is None or value == []:
        raise _refuse(None, "at least one pattern as shop.*")
    return [value] if isinstance(value, str) else value


Text = Annotated[str, _text("text")]
Name = Annotated[str, _text("letters, digits and . _ -, at most 64, with a letter or digit first", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")]
File = Annotated[str, BeforeValidator(_path)]
Pattern = Annotated[str, BeforeValidator(_pattern)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_some)]


# ---- the file


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


class Cascades(StrEnum):
    """Tables whose rows a foreign key changes behind the log's back."""

    REFUSE = "refuse"
    IGNORE = "ignore"


class Failover(StrEnum):
    """What to do when another server answers."""

    REFUSE = "refuse"
    GTID = "gtid"


class Source(_Section):
    """A MySQL or MariaDB server, and which of its tables."""

    type: Annotated[Literal["mysql"], _text("mysql (for MariaDB too)", "mysql")]
    host: Text | None = None
    port: Annotated[int, _whole(1, 65535)] = 3306
    socket: File | None = None
    username: Text
    password: Annotated[Secret, BeforeValidator(_secret)] = Secret()
    tables: Patterns
    exclude: Annotated[tuple[Pattern, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = ()
    tls: Annotated[Tls, _choice(Tls)] = Tls.PREFERRED
    tls_ca: File | None = None
    tls_cert: File | None = None
    tls_key: File | None = None
    connect_timeout: Annotated[float, _amount(_SECONDS, "1s", "10m", "10s or 1m")] = 10.0
    server_id: Annotated[int, _whole(1, 4_294_967_295)] | None = None
    failover: Annotated[Failover, _choice(Failover)] = Failover.REFUSE
    cascades: Annotated[Cascades, _choice(Cascades)] = Cascades.REFUSE
    zero_dates: Annotated[ZeroDates, _choice(ZeroDates)] = ZeroDates.NULL
    time_as: Annotated[TimeAs, _choice(TimeAs)] = TimeAs.MICROS

    @model_validator(mode="after")
    def _fits(self) -> Source:
        if (self.host is None) == (self.socket is None):
            raise PydanticCustomError("config", "{text}", {"text": "needs either host or socket"})
        try:
            self.options()
        except InvalidConfig as error:
            raise _from(error) from None
        return self

    def options(self) -> MySqlOptions:
        return MySqlOptions(
            host=self.host or "127.0.0.1",
            port=self.port,
            socket=self.socket,
            username=self.username,
            password=self.password,
            tls=self.tls,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            connect_timeout_s=self.connect_timeout,
        )

    def types(self) -> TypeOptions:
        return TypeOptions(zero_dates=self.zero_dates, time_as=self.time_as)


class SinkType(StrEnum):
    PAIMON = "paimon"
    FLUSS = "fluss"


class Tiered(StrEnum):
    """Whether a tiering service takes Fluss' tables on to the lake."""

    YES = "yes"
    NO = "no"


_NEEDED: Final = {SinkType.PAIMON: "warehouse", SinkType.FLUSS: "bootstrap"}
_ONLY_FLUSS: Final = ("bootstrap", "tiered", "freshness")


class Sink(_Section):
    """The lake, or Fluss in front of it."""

    type: Annotated[SinkType, _choice(SinkType)]
    warehouse: Annotated[str, BeforeValidator(_address)] = ""
    bootstrap: Annotated[str, BeforeValidator(_bootstrap)] = ""
    buckets: Annotated[int, _whole(1, 10_000)] = 2
    tiered: Annotated[Tiered, _choice(Tiered)] = Tiered.YES
    freshness: Annotated[float, _amount(_SECONDS, "1s", "24h", "10s or 3m")] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Sink:
        needed, given = _NEEDED[self.type], self.model_fields_set
        if needed not in given:
            raise PydanticCustomError("config", "{text}", {"text": f"needs {needed}, because its type is {self.type}"})
        wrong = given.intersection(_ONLY_FLUSS if self.type is SinkType.PAIMON else ["warehouse"])
        if wrong:
            raise PydanticCustomError("config", "{text}", {"text": f"{min(wrong)} does not go with the type {self.type}"})
        return self

    def fluss(self) -> FlussTarget | None:
        if self.type is SinkType.PAIMON:
            return None
        return FlussTarget(self.bootstrap, self.tiered is Tiered.YES, self.freshness)


class RouteConfig(_Section):
    """Where the tables of a pattern go. The first route that matches a table wins."""

    source: Pattern
    target: Text
    mode: Annotated[Mode, _choice(Mode)] = Mode.UPSERT

    @model_validator(mode="after")
    def _fits(self) -> RouteConfig:
        try:
            self.route()
        except InvalidConfig as error:
            raise _from(error) from None
        return self

    def route(self) -> Route:
        return Route(self.source, self.target, self.mode)


class Run(_Section):
    """How it is done."""

    name: Name
    state: Annotated[Path | str, BeforeValidator(_state)]
    state_options: Annotated[dict[str, str | Secret], BeforeValidator(_options)] = {}
    interval: Annotated[float, _amount(_SECONDS, "100ms", "1h", "500ms, 5s or 1m")] = 5.0
    rows_per_chunk: Annotated[int, _whole(100, 100_000_000)] = 500_000
    chunks_at_once: Annotated[int, _whole(1, 1024)] | None = None
    epoch_bytes: Annotated[float, _amount(_BYTES, "1MiB", "64GiB", "64MiB or 1GiB")] = float(256 << 20)
    prepared_bytes: Annotated[float, _amount(_BYTES, "1MiB", "1024GiB", "512MiB or 4GiB")] = float(PREPARED_BYTES_MAX)

    @model_validator(mode="after")
    def _fits(self) -> Run:
        try:
            if isinstance(self.state, str):
                check_options(self.state, self.state_options)
            elif self.state_options:
                raise InvalidConfig("state_options are for a state in a bucket")
        except InvalidConfig as error:
            raise _from(error) from None
        return self

    def place(self) -> Path | Bucket:
        return self.state if isinstance(self.state, Path) else Bucket(self.state, tuple(self.state_options.items()))


class RelayConfig(_Section):
    """The captured log that the lake does not have yet."""

    disk_bytes_max: Annotated[float, _amount(_BYTES, "64MiB", "1024TiB", "16GiB or 1TiB")] = float(CaptureLimits().disk_bytes_max)
    spill_bytes_max: Annotated[float, _amount(_BYTES, "16MiB", "1TiB", "4GiB or 64GiB")] = float(Limits().spill_bytes_max)
    spool: File | None = None

    def limits(self) -> CaptureLimits:
        return CaptureLimits(disk_bytes_max=int(self.disk_bytes_max))

    def reading(self) -> Limits:
        return Limits(spill_bytes_max=int(self.spill_bytes_max), unpacked_bytes_max=int(self.spill_bytes_max))


class PipelineConfig(_Section):
    """A pipeline as its file describes it. Secrets are in it by reference only."""

    source: Source
    sink: Sink
    routes: tuple[RouteConfig, ...] = ()
    relay: RelayConfig = RelayConfig()
    pipeline: Run

    @model_validator(mode="after")
    def _fits(self) -> PipelineConfig:
        for number, route in enumerate(self.routes, 1):
            if self.sink.type is SinkType.FLUSS and route.mode is Mode.CHANGELOG:
                text = f"routes[{number}].mode: {route.mode} does not go with the sink {self.sink.type}, whose tables hold rows as they are"
                raise PydanticCustomError("config", "{text}", {"text": text})
        return self

    def to_settings(self) -> Settings:
        """What the engine wants to know."""
        return Settings(
            name=self.pipeline.name,
            state=self.pipeline.place(),
            spool=Path(self.relay.spool) if self.relay.spool else None,
            warehouse=self.sink.warehouse,
            source=self.source.options(),
            tables=self.source.tables,
            exclude=self.source.exclude,
            routes=tuple(route.route() for route in self.routes),
            target=SAME_NAME,
            interval_s=self.pipeline.interval,
            epoch_bytes=int(self.pipeline.epoch_bytes),
            prepared_bytes_max=int(self.pipeline.prepared_bytes),
            rows_per_chunk=self.pipeline.rows_per_chunk,
            chunks_at_once=self.pipeline.chunks_at_once,
            buckets=self.sink.buckets,
            refuse_cascades=self.source.cascades is Cascades.REFUSE,
            failover=self.source.failover is Failover.GTID,
            server_id=self.source.server_id,
            types=self.source.types(),
            capture=self.relay.limits(),
            limits=self.relay.reading(),
            fluss=self.sink.fluss(),
        )


class Fluss(_Section):
    """A Fluss cluster."""

    bootstrap: Annotated[str, BeforeValidator(_bootstrap)]
    remote_options: Annotated[dict[str, str | Secret], BeforeValidator(_options)] = {}


class Lake(_Section):
    """Where its tables go."""

    type: Annotated[Literal["paimon"], _text("paimon", "paimon")]
    warehouse: Annotated[str, BeforeValidator(_address)]


class TieringRun(_Section):
    """How it is done."""

    name: Name
    rounds_at_once: Annotated[int, _whole(1, 64)] = 2
    poll: Annotated[float, _amount(_SECONDS, "50ms", "1m", "500ms or 5s")] = 1.0
    lease: Annotated[float, _amount(_SECONDS, "10s", "24h", "10m or 1h")] = DURATION_MS / 1000
    round_time: Annotated[float, _amount(_SECONDS, "1s", "24h", "2m or 1h")] = 120.0


class TieringConfig(_Section):
    """A tiering service as its file describes it."""

    fluss: Fluss
    lake: Lake
    tiering: TieringRun

    def to_settings(self) -> TieringSettings:
        return TieringSettings(
            name=self.tiering.name,
            bootstrap=self.fluss.bootstrap,
            warehouse=self.lake.warehouse,
            remote=self.fluss.remote_options,
            rounds_at_once=self.tiering.rounds_at_once,
            poll_s=self.tiering.poll,
            lease_ms=round(self.tiering.lease * 1000),
            round_s_max=self.tiering.round_time,
        )


def read_pipeline(path: Path | str) -> PipelineConfig:
    """Read and check a file. Nothing else is asked for: no server, no environment, no secret's file."""
    return _read(Path(path), PipelineConfig, "run")


def read_tiering(path: Path | str) -> TieringConfig:
    """The same of a tiering service's file."""
    return _read(Path(path), TieringConfig, "tier")


_Config = TypeVar("_Config", PipelineConfig, TieringConfig)


def _read(path: Path, kind: type[_Config], command: str) -> _Config:
    document = _Document(str(path), kind, command)
    value = document.read(_load(path))
    try:
        return kind.model_validate(value, context={"folder": path.absolute().parent})
    except ValidationError as error:
        told = sorted((document.line(one["loc"]), _describe(one, kind)) for one in error.errors(include_url=False, include_input=True))
        raise InvalidConfig("\n".join(f"{path}:{line}: {text}" for line, text in told)) from None


# ---- errors


_OTHER_WORDS: Final = {
    "hostname": "host",
    "user": "username",
    "database": "tables",
    "tables.exclude": "exclude",
    "server-id": "server_id",
    "tls-ca": "tls_ca",
    "ssl": "tls",
    "bucket": "buckets",
    "path": "warehouse",
    "catalog.properties.warehouse": "warehouse",
    "route": "routes",
    "source-table": "source",
    "sink-table": "target",
    "sink": "target",
    "scan.incremental.snapshot.chunk.size": "rows_per_chunk",
    "chunk_size": "rows_per_chunk",
    "checkpoint": "interval",
}
"""What other tools call a key of ours."""

_SECTIONS: Final[Mapping[type[_Section], Mapping[str, type[_Section]]]] = {
    PipelineConfig: {"source": Source, "sink": Sink, "routes": RouteConfig, "relay": RelayConfig, "pipeline": Run},
    TieringConfig: {"fluss": Fluss, "lake": Lake, "tiering": TieringRun},
}


def _describe(error: ErrorDetails, kind: type[_Section]) -> str:
    place = error["loc"]
    name = _name(place)
    match error["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return _unknown(place, kind)
        case "config":
            return f"{name}: {error['msg']}" if place else error["msg"]
        case "model_type" | "model_attributes_type":
            known = ", ".join(_known(place, kind))
            return f"{name}: found {_found(error['input'], True)}; allowed is a mapping of {known}"
        case _:
            return f"{name}: found {_found(error['input'], True)}; allowed is a list"


def _name(place: Place) -> str:
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _known(place: Place, kind: type[_Section]) -> list[str]:
    section = _SECTIONS[kind].get(str(place[0])) if place else kind
    return list(section.model_fields) if section is not None else []


def _unknown(place: Place, kind: type[_Section]) -> str:
    key, known = str(place[-1]), _known(place[:-1], kind)
    text = f"{_name(place)}: no such key; known are {', '.join(known)}"
    near = [_OTHER_WORDS[key]] if _OTHER_WORDS.get(key) in known else difflib.get_close_matches(key, known, n=1)
    if near:
        return f"{text} (hint: did you mean {near[0]}?)"
    word = _OTHER_WORDS.get(key, key)
    at_home = [section for section in _SECTIONS[kind] if section != "routes" and word in _known((section,), kind)]
    return f"{text} (hint: {word} belongs under {at_home[0]})" if at_home else text


# ---- YAML


def _load(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{path} can't be read", detail=error.strerror or "") from None
    if len(raw) > FILE_BYTES_MAX:
        raise InvalidConfig(f"{path}: larger than {FILE_BYTES_MAX >> 20} MiB", hint="is it the right file?")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidConfig(f"{path}:{line}: not UTF-8") from None


@dataclass
class _Document:
    """A file's values as text, lists and mappings, and the line of each."""

    name: str
    kind: type[_Section]
    command: str
    """Whose help shows an example."""
    _lines: dict[Place, int] = field(default_factory=dict)
    _nodes: int = 0

    def line(self, place: Place) -> int:
        """Of a value, or of what it should have been in."""
        while place and place not in self._lines:
            place = place[:-1]
        return self._lines.get(place, 1)

    def read(self, text: str) -> object:
        for number, line in enumerate(text.split("\n"), start=1):
            if re.match(r" *\t\s*[^\s#]", line):
                raise self._error(number, "a tab; YAML is indented with spaces")
        node = self._compose(text)
        if node is None:
            raise InvalidConfig(f"{self.name}: empty", hint=f"`snowmelt {self.command} --help` shows an example")
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "text"
            raise self._error(self._line_of(node), f"found {kind}; allowed is a mapping of {', '.join(_known((), self.kind))}")
        return self._value(node, ())

    def _compose(self, text: str) -> yaml.Node | None:
        # The loader in C would end the process where this one raises RecursionError.
        try:
            node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._error(mark.line + 1 if mark else 1, _problem(str(error.problem))) from None
        except yaml.reader.ReaderError as error:
            raise self._error(text.count("\n", 0, error.position) + 1, "a character that YAML does not allow") from None
        except (RecursionError, ValueError):
            raise self._error(1, f"nested deeper than {DEPTH_MAX}") from None
        return node

    def _value(self, node: yaml.Node, place: Place) -> object:
        self._lines.setdefault(place, self._line_of(node))
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise self._error(self._line_of(node), f"more than {NODES_MAX} values, with all aliases unfolded")
        if len(place) > DEPTH_MAX:
            raise self._error(self._line_of(node), f"nested deeper than {DEPTH_MAX}")
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            # A tag may be the beginning of a password, so it is not repeated.
            raise self._error(
                self._line_of(node), f"{_name(place)}: a tag, which has no meaning here; text that begins with ! needs quotes"
            )
        match node:
            case yaml.MappingNode():
                return self._mapping(node, place)
            case yaml.SequenceNode():
                return [self._value(item, (*place, index)) for index, item in enumerate(node.value)]
            case _:
                return None if node.tag.endswith(":null") else str(node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in node.value:
            line = self._line_of(key)
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(line, f"{_name(place) or self.name}: a key that is not text")
            inner = (*place, key.value)
            if key.value in found:
                raise self._error(line, f"{_name(inner)} is given twice; the first is in line {self._lines[inner]}")
            self._lines[inner] = line
            found[key.value] = self._value(value, inner)
        return found

    @staticmethod
    def _line_of(node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1

    def _error(self, line: int, text: str) -> InvalidConfig:
        return InvalidConfig(f"{self.name}:{line}: {text}")


_PROBLEMS: Final[tuple[tuple[str, str], ...]] = (
    ("undefined alias", "an alias without an anchor; text that begins with * needs quotes"),
    ("expected alphabetic or numeric", "text that begins with * or & needs quotes"),
    ("'\\t'", "a tab; YAML is indented with spaces"),
    ("cannot start any token", "text that begins with one of @ ` % & * ! needs quotes"),
    ("mapping values are not allowed", "a colon where no key can be; text that holds one followed by a blank needs quotes"),
    ("could not find expected ':'", "a line that is neither a key with a colon nor part of a list"),
    ("but found another document", "more than one document in a file"),
    ("end of stream", "a quote or bracket that is not closed"),
)


def _problem(text: str) -> str:
    """What is wrong, in our words or in those of the parser; what it quotes of the file may be a secret."""
    for sign, words in _PROBLEMS:
        if sign in text:
            return f"not YAML: {words}"
    return "not YAML: " + re.sub(r"'([^']*)'", lambda quoted: quoted[0] if len(quoted[1]) < 2 or quoted[1][0] == "<" else "…", text)
