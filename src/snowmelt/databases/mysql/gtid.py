"""GTID sets of both kinds, as values.

MySQL names a transaction by (server uuid[:tag], number) and a set is intervals per uuid. MariaDB names it by
(domain, server, number) and a set is the last transaction of each domain: whatever the domain logged before it is in it.
The two never mix; comparing them is an error of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from snowmelt.errors import Corrupt, InvariantBroken

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_MARIADB = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")

Interval = tuple[int, int]
"""First and last number, both included."""


@dataclass(frozen=True, slots=True)
class MySqlGtidSet:
    """Intervals by source: the uuid, or `uuid:tag`. Normal form: sorted, disjoint, not touching."""

    intervals: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> MySqlGtidSet:
        """Read what `@@gtid_executed` prints, tags included: `uuid:1-5:7:tag:1-3,uuid2:1`."""
        found: dict[str, list[Interval]] = {}
        for part in re.sub(r"\s+", "", text).lower().split(","):
            if not part:
                continue
            uuid, *pieces = part.split(":")
            source, open_source = uuid, True
            for piece in pieces:
                interval = _INTERVAL.fullmatch(piece)
                if interval is not None:
                    first, last = int(interval[1]), int(interval[2] or interval[1])
                    if first < 1 or last < first:
                        raise Corrupt("not a GTID set", detail=repr(part))
                    found.setdefault(source, []).append((first, last))
                    open_source = False
                elif _TAG.fullmatch(piece) and not (open_source and source != uuid):
                    source, open_source = f"{uuid}:{piece}", True
                else:
                    raise Corrupt("not a GTID set", detail=repr(part))
            # A source is there for its numbers: one without any is a text that was cut off.
            if open_source or not _UUID.fullmatch(uuid):
                raise Corrupt("not a GTID set", detail=repr(part))
        return MySqlGtidSet({source: _merge(found[source]) for source in sorted(found)})

    def __str__(self) -> str:
        return ",".join(source + "".join(f":{a}" if a == b else f":{a}-{b}" for a, b in spans) for source, spans in self.intervals.items())

    def __hash__(self) -> int:
        return hash(tuple(self.intervals.items()))

    def has(self, source: str, number: int) -> bool:
        return any(a <= number <= b for a, b in self.intervals.get(source, ()))

    def add(self, source: str, number: int) -> MySqlGtidSet:
        return self.union(MySqlGtidSet({source: ((number, number),)}))

    def union(self, other: MySqlGtidSet) -> MySqlGtidSet:
        merged = {
            source: _merge([*self.intervals.get(source, ()), *other.intervals.get(source, ())])
            for source in sorted({*self.intervals, *other.intervals})
        }
        return MySqlGtidSet(merged)

    def within(self, other: MySqlGtidSet) -> bool:
        """Whether every transaction of this set is in the other."""
        return all(
            any(a >= c and b <= d for c, d in other.intervals.get(source, ())) for source, spans in self.intervals.items() for a, b in spans
        )


@dataclass(frozen=True, slots=True)
class MariaDbGtidSet:
    """The last (server, number) of each domain."""

    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> MariaDbGtidSet:
        """Read what `@@gtid_binlog_pos` prints: `0-1-100,1-7-3`."""
        last: dict[int, tuple[int, int]] = {}
        for part in text.replace(" ", "").replace("\n", "").split(","):
            if not part:
                continue
            match = _MARIADB.fullmatch(part)
            if match is None:
                raise Corrupt("not a MariaDB GTID", detail=repr(part))
            domain, server, number = (int(group) for group in match.groups())
            if domain not in last or last[domain][1] < number:
                last[domain] = (server, number)
        return MariaDbGtidSet({domain: last[domain] for domain in sorted(last)})

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in self.last.items())

    def __hash__(self) -> int:
        return hash(tuple(self.last.items()))

    def has(self, domain: int, number: int) -> bool:
        return domain in self.last and number <= self.last[domain][1]

    def add(self, domain: int, server: int, number: int) -> MariaDbGtidSet:
        if self.has(domain, number):
            return self
        last = {**self.last, domain: (server, number)}
        return MariaDbGtidSet({key: last[key] for key in sorted(last)})

    def union(self, other: MariaDbGtidSet) -> MariaDbGtidSet:
        merged = self
        for domain, (server, number) in other.last.items():
            merged = merged.add(domain, server, number)
        return merged

    def within(self, other: MariaDbGtidSet) -> bool:
        return all(other.has(domain, number) for domain, (_, number) in self.last.items())


GtidSet = MySqlGtidSet | MariaDbGtidSet


def gtid_within(one: GtidSet, other: GtidSet) -> bool:
    """`one` ⊆ `other`, for two sets of the same kind."""
    if isinstance(one, MySqlGtidSet) and isinstance(other, MySqlGtidSet):
        return one.within(other)
    if isinstance(one, MariaDbGtidSet) and isinstance(other, MariaDbGtidSet):
        return one.within(other)
    raise InvariantBroken("GTID sets of two kinds are compared", detail=f"{one} and {other}")


def words_of(gtids: GtidSet | None) -> str | None:
    """A set as a `Position` holds it. Equal sets have equal words."""
    if gtids is None:
        return None
    return f"{'mariadb' if isinstance(gtids, MariaDbGtidSet) else 'mysql'} {gtids}"


def of_words(words: str | None) -> GtidSet | None:
    """Read what `words_of` wrote."""
    if words is None:
        return None
    kind, _, text = words.partition(" ")
    if kind == "mariadb":
        return MariaDbGtidSet.parse(text)
    if kind == "mysql":
        return MySqlGtidSet.parse(text)
    raise Corrupt("not a GTID set", detail=repr(words))


def _merge(spans: list[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)
