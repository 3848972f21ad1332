"""Where a pipeline's tables of Fluss are. It needs nothing that comes with the extra `fluss`: settings of all pipelines know of it."""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class FlussTarget:
    """The cluster that tables are brought to, and what new ones are like."""

    bootstrap: str
    """Servers of the cluster, of which one must answer: host:port, with commas between them."""
    tiered: bool = True
    """Whether a tiering service takes them on to the lake."""
    freshness_s: float | None = None
    """How far the lake may be behind; None: as Fluss has it."""

    def properties(self) -> dict[str, str]:
        if not self.tiered:
            return {}
        fresh = {} if self.freshness_s is None else {"table.datalake.freshness": f"{round(self.freshness_s * 1000)}ms"}
        return {"table.datalake.enabled": "true"} | fresh


def parse_bootstrap(bootstrap: str) -> tuple[tuple[str, int], ...]:
    """`host:port`, several of them with commas between, as Fluss' own clients take them."""
    addresses = []
    for one in bootstrap.split(","):
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise InvalidConfig("the address of a Fluss server is not host:port", detail=one.strip())
        addresses.append((host.strip("[]"), int(port)))
    return tuple(addresses)
