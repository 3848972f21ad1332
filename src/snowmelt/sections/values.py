"""How a key's text is read, and what is said of text that can't be.

What may be a secret is never repeated, nor an address that may hold credentials.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig
from snowmelt.model.patterns import match_tables
from snowmelt.store.objects import check_options

FOUND_CHARACTERS_MAX: Final = 60
SECRET_ENTRY: Final = re.compile(r"(?i)secret|password|token|access[.]?key|credential")
"""Names of Spark entries that hold secrets, by Spark's own rule for what it must not show."""
_FIXED: Final = "its tasks rely on it"
OUR_ENTRIES: Final[Mapping[str, str]] = {
    "spark.app.name": "name the pipeline instead",
    "spark.log.level": "use --debug instead",
    "spark.ui.enabled": "use --ui instead",
    "spark.ui.showConsoleProgress": _FIXED,
    "spark.scheduler.mode": _FIXED,
    "spark.python.daemon.module": _FIXED,
    "spark.sql.adaptive.enabled": _FIXED,
    "spark.locality.wait": _FIXED,
    "spark.submit.deployMode": "the driver runs in this process",
    "spark.remote": "a run needs a session of its own",
}
"""Entries that `snowmelt run` sets itself, and what to do instead."""


def refusal(value: object, allowed: str, *, secret: bool = False) -> PydanticCustomError:
    return PydanticCustomError("config", "{text}", {"text": f"found {shown(value, secret)}; allowed is {allowed}"})


def shown(value: object, secret: bool) -> str:
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


def from_error(known: InvalidConfig) -> PydanticCustomError:
    """An error that another module found in a value; its texts hold no secrets."""
    return PydanticCustomError("config", "{text}", {"text": str(known)})


def text_like(allowed: str, pattern: str = r"\S(.*\S)?", *, secret: bool = False) -> BeforeValidator:
    def read(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise refusal(value, allowed, secret=secret)
        return value

    return BeforeValidator(read)


def whole_number(low: int, high: int) -> BeforeValidator:
    def read(value: object) -> int:
        # As Python writes them, but without a sign: 100_000 is fine.
        if isinstance(value, str) and len(value) <= 20 and re.fullmatch(r"[0-9]+(_[0-9]+)*", value) and low <= int(value) <= high:
            return int(value)
        raise refusal(value, f"a whole number from {low} to {high}")

    return BeforeValidator(read)


def one_of(kind: type[StrEnum], *left_out: StrEnum) -> BeforeValidator:
    allowed = [one.value for one in kind if one not in left_out]

    def read(value: object) -> StrEnum:
        # YAML's null is the word null here.
        word = "null" if value is None and "null" in allowed else value
        if not isinstance(word, str) or word not in allowed:
            raise refusal(value, ", ".join(allowed))
        return kind(word)

    return BeforeValidator(read)


SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
BYTES: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


def amount(units: Mapping[str, float], low: str, high: str, examples: str) -> BeforeValidator:
    """A number with a unit."""
    least, most = _parse_amount(units, low), _parse_amount(units, high)

    def read(value: object) -> float:
        found = _parse_amount(units, value) if isinstance(value, str) else None
        if found is None or least is None or most is None or not least <= found <= most:
            raise refusal(value, f"a number with its unit from {low} to {high}, as {examples}")
        return found

    return BeforeValidator(read)


def _parse_amount(units: Mapping[str, float], text: str) -> float | None:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]{1,3})", text)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


def _secret(value: object, info: ValidationInfo) -> Secret:
    if not isinstance(value, str):
        raise refusal(value, "${NAME} for an environment variable, or file:/path", secret=True)
    try:
        secret = Secret(value)
    except InvalidConfig as error:
        raise from_error(error) from None
    # A task has another working folder than the driver.
    return Secret(f"file:{_folder(info) / secret.reference.removeprefix('file:')}") if value.startswith("file:") else secret


def _path(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise refusal(value, "the path of a file")
    return str(_folder(info) / value)


def _address(value: object, info: ValidationInfo) -> str:
    """A path or the address of a bucket, without credentials."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise refusal(value, "a path, or an address as s3://bucket/prefix", secret=True)
    try:
        if "://" in value:
            check_options(value, {})
            return value
    except InvalidConfig as error:
        raise from_error(error) from None
    return str(_folder(info) / value)


def _url(value: object, info: ValidationInfo) -> str | Secret:
    """The address of a web server, or a reference to one: it may hold a token."""
    if isinstance(value, str) and value.startswith(("${", "file:")):
        return _secret(value, info)
    # What has an @ may hold a password, and what has a ? a token.
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s@?#\\]+", value):
        raise refusal(value, "https://host/path; one with a password or a token as ${NAME} or file:/path", secret=True)
    return value


def _state(value: object, info: ValidationInfo) -> Path | str:
    """A path, or the address of a bucket."""
    address = _address(value, info)
    if address.startswith("memory://"):
        raise refusal(value, "a path, or an address as s3://bucket/prefix")
    if "://" in address and not address.startswith("file://"):
        return address
    return Path(address.removeprefix("file://"))


def _options(value: object, info: ValidationInfo) -> dict[str, str | Secret]:
    """Options of a store; what is a reference is a secret."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise refusal(value, "a mapping as {region: eu-central-1, secret_access_key: ${S3_SECRET}}", secret=True)
    found: dict[str, str | Secret] = {}
    for name, text in value.items():
        if not isinstance(text, str):
            raise refusal(text, f"text, for {name}", secret=True)
        found[name] = _secret(text, info) if text.startswith(("${", "file:")) else text
    return found


def _spark_entries(value: object, info: ValidationInfo) -> dict[str, str | Secret]:
    """Entries of a Spark session's configuration; a reference is a secret."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise refusal(value, "a mapping as {spark.executor.memory: 2g}", secret=True)
    found: dict[str, str | Secret] = {}
    for name, text in value.items():
        if not re.fullmatch(r"spark(\.[A-Za-z0-9_-]+)+", name):
            raise refusal(name, "a name of Spark's as spark.executor.memory")
        if name in OUR_ENTRIES:
            raise PydanticCustomError("config", "{text}", {"text": f"{name} is snowmelt's to set; {OUR_ENTRIES[name]}"})
        if not isinstance(text, str):
            raise refusal(text, f"text, for {name}", secret=True)
        reference = text.startswith(("${", "file:"))
        if not reference and SECRET_ENTRY.search(name):
            raise refusal(text, f"${{NAME}} or file:/path, for {name}", secret=True)
        found[name] = _secret(text, info) if reference else text
    return found


def _folder(info: ValidationInfo) -> Path:
    folder: Path = (info.context or {})["folder"]
    return folder


def _bootstrap(value: object) -> str:
    addresses = value.split(",") if isinstance(value, str) else value
    if not isinstance(addresses, list) or not addresses:
        raise refusal(value, "host:port of a Fluss server, or several", secret=True)
    found = [str(one).strip() for one in addresses]
    if not all(re.fullmatch(r"([^\s:,@/]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}", one) for one in found):
        # What has an @ may hold a password.
        raise refusal(value, "host:port of a Fluss server, or several", secret="@" in str(value))
    return ",".join(found)


def _pattern(value: object) -> str:
    if not isinstance(value, str):
        raise refusal(value, "a pattern as shop.*")
    if "\\" in value:
        raise refusal(value, "a pattern as shop.* with * and ?; it is no regular expression")
    try:
        match_tables([value])
    except InvalidConfig as error:
        raise from_error(error) from None
    return value


def _some(value: object) -> object:
    """One is a list of one."""
    if value is None or value == []:
        raise refusal(None, "at least one pattern as shop.*")
    return [value] if isinstance(value, str) else value


class YesNo(StrEnum):
    YES = "yes"
    NO = "no"


Text = Annotated[str, text_like("text")]
Name = Annotated[str, text_like("letters, digits and . _ -, at most 64, with a letter or digit first", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")]
File = Annotated[str, BeforeValidator(_path)]
Pattern = Annotated[str, BeforeValidator(_pattern)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_some)]
Address = Annotated[str, BeforeValidator(_address)]
Url = Annotated[str | Secret, BeforeValidator(_url)]
State = Annotated[Path | str, BeforeValidator(_state)]
Password = Annotated[Secret, BeforeValidator(_secret)]
Options = Annotated[dict[str, str | Secret], BeforeValidator(_options)]
SparkEntries = Annotated[dict[str, str | Secret], BeforeValidator(_spark_entries)]
Bootstrap = Annotated[str, BeforeValidator(_bootstrap)]
