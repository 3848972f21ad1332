"""What a server shows, in answer to the chunk lane."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.databases.mysql.connect import MySqlOptions, Session
from snowmelt.databases.mysql.gtid import MySqlGtidSet, gtid_within, of_words
from snowmelt.databases.mysql.preflight import prepared_transactions
from snowmelt.databases.mysql.read.reads import newest_visible
from snowmelt.databases.mysql.types.columns import MySqlTable
from snowmelt.errors import Unavailable
from snowmelt.model.position import Position


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """Everything up to a place is shown.

    MariaDB moves its place before its engine shows an XA COMMIT. One that is not shown yet is in `hidden`: the transactions that the server
    lists as prepared after the place was read. MySQL's place was read under a lock on one table, and is proven for that table alone.
    """

    place: Position
    alone: bool = False
    hidden: frozenset[str] = frozenset()

    def shows(self, place: Position) -> bool:
        return place.era == self.place.era and place <= self.place


@dataclass(frozen=True, slots=True)
class ShownGtids:
    """The transactions of a set are shown: the set moves after the engine shows them."""

    gtids: MySqlGtidSet
    place: None = None
    alone: bool = False
    hidden: frozenset[str] = frozenset()

    def shows(self, place: Position) -> bool:
        # A server that keeps no GTIDs gives an empty set, which proves nothing.
        before = of_words(place.transactions)
        return before is not None and bool(str(before)) and gtid_within(before, self.gtids)


def ask_shown(options: MySqlOptions, table: MySqlTable, era: int) -> ShownPlace | ShownGtids:
    with Session(options) as session:
        found = newest_visible(session, table, era=era)
        if isinstance(found, MySqlGtidSet):
            return ShownGtids(found)
        if session.server.flavour == "mysql":
            return ShownPlace(found, alone=True)
        prepared = prepared_transactions(session)
        if prepared is None:
            raise Unavailable("the server does not say which XA transactions are prepared", detail=str(session.server))
        return ShownPlace(found, hidden=frozenset(prepared))
