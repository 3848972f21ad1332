"""Decoding: ranges of raw events in, batches of changes per table and schema changes out, in the order of the log.

reader       a server's ranges, one after the other
ranges       the walk through one range, window by window
long_groups  transactions that no window holds: how they end is found first
rollbacks    what a transaction undid by ROLLBACK TO
prepared     XA groups that wait for their COMMIT
following    statements, and the schemas after them
batches      row events as Arrow batches
finishing    arenas as Arrow arrays
items        the values that come out
tables       the tables that are read, and their server
refusals     errors of a log that can't be read on
warming      compile the kernels
"""

from snowmelt.databases.mysql.log.decode.batches import ABSENT
from snowmelt.databases.mysql.log.decode.items import ChangeBatch, Counters, HeldGroup, LogItem, SchemaChanged, Transactions
from snowmelt.databases.mysql.log.decode.reader import LogReader
from snowmelt.databases.mysql.log.decode.tables import LogServer
from snowmelt.databases.mysql.log.decode.warming import ENTRIES, warm

__all__ = [
    "ABSENT",
    "ENTRIES",
    "ChangeBatch",
    "Counters",
    "HeldGroup",
    "LogItem",
    "LogReader",
    "LogServer",
    "SchemaChanged",
    "Transactions",
    "warm",
]
