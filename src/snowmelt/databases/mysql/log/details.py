"""The part of a segment's index that is MySQL's own: how its events are read, and how capture continues after them."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from snowmelt.databases.mysql.types.columns import Flavour
from snowmelt.errors import Corrupt, check
from snowmelt.segments import Segment

KIND: Final = "mysql"
_KNOWN_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """`Segment.own` of a log of MySQL or MariaDB."""

    flavour: Flavour
    version: tuple[int, int, int]
    crc_length: int
    """4 if each event ends with its CRC-32, else 0. FORMAT_DESCRIPTION always has one."""
    restart: int
    """The last cut point up to the segment's end that a connection can begin at. It can't begin beyond 4 GiB."""
    format_description: bytes
    """The whole event that the log file begins with. If capture began inside the file, it is the one that the server made up for the
    connection."""
    event_bytes_max: int
    payloads: int = 0
    """The number of transactions that are compressed as a whole. Capture can't see whether they are of XA, so they have no mark."""

    def encode(self) -> str:
        fields = {
            "flavour": self.flavour,
            "version": self.version,
            "crc_length": self.crc_length,
            "restart": self.restart,
            "format_description": base64.b64encode(self.format_description).decode(),
            "event_bytes_max": self.event_bytes_max,
            "payloads": self.payloads,
        }
        return json.dumps(fields, separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> Details:
        try:
            fields = json.loads(text)
            made = Details(
                flavour=fields["flavour"],
                version=tuple(fields["version"]),
                crc_length=fields["crc_length"],
                restart=fields["restart"],
                format_description=base64.b64decode(fields["format_description"], validate=True),
                event_bytes_max=fields["event_bytes_max"],
                payloads=fields["payloads"],
            )
            right = made.flavour in ("mysql", "mariadb") and made.crc_length in (0, 4) and len(made.version) == 3
            right = right and min(made.event_bytes_max - 1, made.restart, made.payloads, *made.version) >= 0
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            right = False
        if not right:
            raise Corrupt("the part of a segment's index about MySQL's log can't be read")
        return made


details_of_own = lru_cache(_KNOWN_MAX)(Details.decode)
"""By `Segment.own`."""


def details_of(segment: Segment) -> Details:
    check(segment.database == KIND, "a segment of another database is read as MySQL's", f"{segment.database}, {segment.log}")
    found = details_of_own(segment.own)
    if found.event_bytes_max > segment.data_bytes or (segment.data_crc32 is None) != (found.crc_length == 4):
        raise Corrupt("the index of a segment contradicts itself", detail=f"{segment.log}:{segment.start.offset}")
    return found
