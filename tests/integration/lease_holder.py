"""A process that holds a lease until it is killed.

python -m tests.integration.lease_holder BOOTSTRAP DATABASE TABLE LEASE DURATION_MS
"""

from __future__ import annotations

import sys
import threading

from snowmelt.engine.tiering.leasing import Leasing
from snowmelt.fluss.client import connect_coordinator
from snowmelt.model.fluss import Bucket
from snowmelt.model.table import TableId

if __name__ == "__main__":
    bootstrap, database, name, lease, duration_ms = sys.argv[1:]
    path = TableId(database, name)
    info = connect_coordinator(bootstrap).table_info(path)
    leasing = Leasing(bootstrap, duration_ms=int(duration_ms))
    leasing.acquire(lease, path, info.table, {Bucket(info.table, bucket): None for bucket in range(info.buckets)})
    print("held", flush=True)
    threading.Event().wait()
