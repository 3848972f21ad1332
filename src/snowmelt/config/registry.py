"""Which databases a pipeline's file can name, and the section of each. To add a database is to add a line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from snowmelt.databases.contract.section import SourceSection
from snowmelt.databases.mysql.section import MySqlSource
from snowmelt.errors import InvalidConfig
from snowmelt.sections.document import name_of

SOURCES: Final[Mapping[str, type[SourceSection]]] = {"mysql": MySqlSource}
"""By `type`."""
TYPES: Final = "mysql (for MariaDB too)"
"""What `type` may be, for an error."""


def source_of(given: Mapping[str, object]) -> SourceSection:
    """The section that holds these keys, as text: for a program or a command that has no file. `InvalidConfig`: as a file would be told."""
    kind = str(given.get("type", ""))
    if kind not in SOURCES:
        raise InvalidConfig(f"a source of an unknown type: {kind!r}", detail=f"allowed is {TYPES}")
    try:
        return SOURCES[kind].model_validate(dict(given), context={"folder": Path.cwd()})
    except ValidationError as error:
        wrong = [(name_of(one["loc"]), one["msg"]) for one in error.errors(include_url=False, include_input=False)]
        raise InvalidConfig(
            "a source can't be used", detail="; ".join(f"{name}: {text}" if name else text for name, text in wrong)
        ) from None
