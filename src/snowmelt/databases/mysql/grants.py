"""A user's privileges, by SHOW GRANTS. Its text holds hashes of passwords, so none of it gets into a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from snowmelt.model.table import TableId

_NAME = r"\*|`(?:[^`]|``)*`|[^`.\s]+"
_GRANT = re.compile(
    r"^(?P<verb>GRANT|REVOKE) (?P<what>(?:[^`(]|\((?:[^`)]|`(?:[^`]|``)*`)*\))+?) ON (?:TABLE )?"
    rf"(?P<database>{_NAME})\.(?P<name>{_NAME}) (?:TO|FROM) "
)
_PRIVILEGE = re.compile(r"\s*([A-Za-z_ ]+?)\s*(\([^)]*\))?\s*(?:,|$)")
_SAME = {"REPLICATION REPLICA": "REPLICATION SLAVE", "BINLOG MONITOR": "REPLICATION CLIENT"}
"""One privilege, two names."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The privileges of SHOW GRANTS, active roles included. Privileges on single columns don't count, because we read whole rows."""

    everywhere: frozenset[str]
    databases: tuple[tuple[str, frozenset[str]], ...]
    """Pattern in the server's LIKE syntax, or a plain name where wildcards are off, and privileges."""
    tables: tuple[tuple[TableId, frozenset[str]], ...]
    revoked: tuple[tuple[str, frozenset[str]], ...] = ()
    """MySQL's partial revokes: taken from a database though granted everywhere."""
    wildcards: bool = True

    @staticmethod
    def parse(lines: Iterable[str], *, wildcards: bool = True) -> Grants:
        everywhere: set[str] = set()
        databases: list[tuple[str, frozenset[str]]] = []
        tables: list[tuple[TableId, frozenset[str]]] = []
        revoked: list[tuple[str, frozenset[str]]] = []
        for line in lines:
            # Grants of roles, routines and proxies are of no interest, and don't match.
            match = _GRANT.match(line)
            if match is None:
                continue
            privileges = frozenset(
                _SAME.get(found[1].upper(), found[1].upper()) for found in _PRIVILEGE.finditer(match["what"]) if not found[2]
            )
            database, name = _unquote(match["database"]), _unquote(match["name"])
            if match["verb"] == "REVOKE":
                revoked.append((database, privileges))
            elif match["database"] == "*":
                everywhere |= privileges
            elif match["name"] == "*":
                databases.append((database, privileges))
            else:
                tables.append((TableId(database, name), privileges))
        return Grants(frozenset(everywhere), tuple(databases), tuple(tables), tuple(revoked), wildcards)

    def anywhere(self, *privileges: str) -> bool:
        """Whether one of these privileges of the whole server is held."""
        return any(_has(self.everywhere, _SAME.get(privilege, privilege)) for privilege in privileges)

    def on_database(self, privilege: str, database: str) -> bool:
        if _has(self.everywhere, privilege):
            return not any(name == database and _has(privileges, privilege) for name, privileges in self.revoked)
        return any(self._matches(pattern, database) and _has(privileges, privilege) for pattern, privileges in self.databases)

    def on_table(self, privilege: str, table: TableId) -> bool:
        return self.on_database(privilege, table.database) or any(
            granted == table and _has(privileges, privilege) for granted, privileges in self.tables
        )

    def _matches(self, pattern: str, database: str) -> bool:
        if not self.wildcards:
            return pattern == database
        parts = re.findall(r"\\.|.", pattern, re.DOTALL)
        regex = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
        return re.fullmatch(regex, database, re.DOTALL) is not None


def _has(privileges: frozenset[str], privilege: str) -> bool:
    return privilege in privileges or "ALL PRIVILEGES" in privileges or "ALL" in privileges


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
