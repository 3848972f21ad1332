"""The pieces of real logs and result sets that the fuzzer changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from snowmelt.columnar.arena import Bytes
from snowmelt.databases.mysql.types.columns import Flavour, MySqlColumn, MySqlTable
from snowmelt.model.table import TableId

FOLDER = Path(__file__).with_name("segments")


@dataclass(frozen=True)
class Piece:
    """A range of a server's log, and what its catalogue said of the tables before it."""

    name: str
    flavour: Flavour
    version: tuple[int, int, int]
    start: int
    end: int
    checksum_bytes: int
    tables: tuple[MySqlTable, ...]
    data: bytes

    @cached_property
    def events(self) -> tuple[tuple[int, int], ...]:
        """Where each event lies: its first byte and the one behind it."""
        return tuple(spans(self.data))

    @cached_property
    def array(self) -> Bytes:
        return np.frombuffer(bytearray(self.data), np.uint8)


@dataclass(frozen=True)
class Result:
    """What a server sent for a SELECT by the binary protocol."""

    name: str
    table: MySqlTable
    data: bytes


@dataclass(frozen=True)
class Document:
    """MySQL's binary JSON, and what a partial update changes of it, if it does."""

    whole: bytes
    differences: bytes


class Line:
    """What `select` needs of a session, around any socket."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.options = self
        self.read_timeout_s = 60

    def close(self) -> None:
        pass


def spans(data: bytes) -> list[tuple[int, int]]:
    found = []
    at = 0
    while len(data) - at >= 19:
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < 19 or size > len(data) - at:
            break
        found.append((at, at + size))
        at += size
    return found


def _table(fields: dict[str, Any]) -> MySqlTable:
    columns = tuple(MySqlColumn(**(column | {"labels": tuple(column.get("labels", ()))})) for column in fields["columns"])
    return MySqlTable(**(fields | {"id": TableId(**fields["id"]), "columns": columns, "key": tuple(fields.get("key", ()))}))


def _index() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "index.json").read_text())
    return found


def load_pieces() -> list[Piece]:
    return [
        Piece(
            name=name,
            flavour=fields["flavour"],
            version=tuple(fields["version"]),
            start=fields["start"],
            end=fields["end"],
            checksum_bytes=fields["checksum_bytes"],
            tables=tuple(_table(table) for table in fields["tables"]),
            data=(FOLDER / f"{name}.log").read_bytes(),
        )
        for name, fields in _index()["segments"].items()
    ]


def load_results() -> list[Result]:
    return [Result(name, _table(fields), (FOLDER / f"{name}.rows").read_bytes()) for name, fields in _index()["results"].items()]


def load_documents() -> list[Document]:
    return [Document(bytes.fromhex(whole), bytes.fromhex(differences)) for whole, differences in _index()["documents"]]
