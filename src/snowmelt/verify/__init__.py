"""Whether the lake is the source: tables compared by checksums, while the database is written to and the pipeline runs.

lake       one snapshot, hashed by Spark tasks
rounds     which rows are wrong, and why that is never a false alarm and never a miss; pure
standing   how far the lake is; the pipeline's state is read and never written
compare    all of it, table by table

The database's half is `databases/contract/comparing`: exact reads whose rows the server hashes, the same hashes of the lake's
rows, and what the log did between two places. Digests of rows, and how rows are parted into classes, are in `databases/comparing`.
"""

from snowmelt.verify.compare import Difference, Step, TableOutcome, TableVerdict, open_state, verify

__all__ = ["Difference", "Step", "TableOutcome", "TableVerdict", "open_state", "verify"]
