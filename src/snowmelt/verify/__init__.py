"""Whether the lake is the source: tables compared by checksums, while the database is written to and the pipeline runs.

lake       one snapshot, hashed by Spark tasks
rounds     which rows are wrong, and why that is never a false alarm and never a miss; pure
standing   how far the lake is; the pipeline's state is read and never written
compare    all of it, table by table

The database's half is in `databases/mysql/verify`: one text for each value (`forms`), exact reads that the database hashes (`source`), and
what its log did between two places (`log`). Digests of rows, and how rows are parted into classes, are in `databases/comparing`.
"""

from snowmelt.verify.compare import Difference, Step, TableOutcome, TableVerdict, open_state, verify

__all__ = ["Difference", "Step", "TableOutcome", "TableVerdict", "open_state", "verify"]
