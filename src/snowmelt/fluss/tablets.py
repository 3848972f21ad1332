"""Connections to the tablet servers of a Fluss cluster."""

from __future__ import annotations

from snowmelt.fluss.answers import Cluster, Node
from snowmelt.fluss.client import FlussClient
from snowmelt.fluss.rpc import FlussConnection
from snowmelt.fluss.tables import leader_of
from snowmelt.model.fluss import Bucket


class Tablets:
    """Connections to the tablet servers that lead buckets, one per server. `close` it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[Node, FlussConnection] = {}

    def leader(self, bucket: Bucket) -> Node:
        return leader_of(self._cluster, bucket)

    def client(self, node: Node) -> FlussClient:
        if node not in self._open:
            self._open[node] = FlussConnection(node.host, node.port, login=self._cluster.login)
        return FlussClient(self._open[node])

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
