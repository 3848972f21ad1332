"""Where a pipeline's tables of Fluss are. It needs nothing that comes with the extra `fluss`: settings of all pipelines know of it."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Login:
    """A user of SASL/PLAIN. The password is looked up for each connection and kept nowhere."""

    username: str
    password: Secret

    def token(self) -> bytes:
        """As the server wants it. Hand it straight to the connection."""
        password = self.password.reveal()
        if not self.username or not password or "\0" in self.username + password:
            raise InvalidConfig("a user of Fluss needs a name and a password", detail=f"user {self.username!r:.60}")
        return f"\0{self.username}\0{password}".encode()


@dataclass(frozen=True, slots=True)
class FlussTarget:
    """The cluster that tables are brought to, and what new ones are like."""

    bootstrap: str
    """Servers of the cluster, of which one must answer: host:port, with commas between them."""
    tiered: bool = True
    """Whether a tiering service takes them on to the lake."""
    freshness_s: float | None = None
    """How far the lake may be behind; None: as Fluss has it."""
    login: Login | None = None
    """Where the servers ask for it."""

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
    """`host:port`, several of them with commas between, as Fluss' own clients take them."""
    addresses = []
    for one in bootstrap.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise InvalidConfig("the address of a Fluss server is not host:port", detail=one.strip())
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)
