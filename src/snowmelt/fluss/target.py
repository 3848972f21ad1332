"""Where a pipeline's Fluss tables are. It needs nothing of the extra `fluss`, because the settings of all pipelines use it."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Login:
    """A user of SASL/PLAIN. The password is resolved for each connection and not kept."""

    username: str
    password: Secret

    def token(self) -> bytes:
        """The token in the server's form. Pass it straight to the connection."""
        password = self.password.reveal()
        if not self.username or not password or "\0" in self.username + password:
            raise InvalidConfig("a user of Fluss needs a name and a password", detail=f"user {self.username!r:.60}")
        return f"\0{self.username}\0{password}".encode()


@dataclass(frozen=True, slots=True)
class FlussTarget:
    """The cluster for the tables, and the properties of new tables."""

    bootstrap: str
    """Servers of the cluster, host:port with commas between them. At least one must answer."""
    tiered: bool = True
    """Whether a tiering service copies them to the lake."""
    freshness_s: float | None = None
    """How late the lake may be; None: Fluss' default."""
    login: Login | None = None
    """For servers that ask for a login."""

    def properties(self) -> dict[str, str]:
        if not self.tiered:
            return {}
        fresh = {} if self.freshness_s is None else {"table.datalake.freshness": f"{round(self.freshness_s * 1000)}ms"}
        return {"table.datalake.enabled": "true"} | fresh


def make_login(username: str, password: Secret) -> Login | None:
    """Both are given, or neither."""
    if bool(username) != bool(password.reference):
        missing = "password" if username else "username"
        raise InvalidConfig(f"a login to Fluss lacks its {missing}", hint="give username and password, or neither")
    return Login(username, password) if username else None


def parse_bootstrap(bootstrap: str) -> tuple[tuple[str, int], ...]:
    """`host:port`, several of them with commas between them, like Fluss' own clients."""
    addresses = []
    for one in bootstrap.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise InvalidConfig("the address of a Fluss server is not host:port", detail=one.strip())
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)
