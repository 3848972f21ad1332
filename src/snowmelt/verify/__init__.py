"""Whether the lake is the source: tables compared by checksums, while the database is written to and the pipeline runs.

forms      one text for each value, on both sides
digests    MD5 of rows in compiled code
classes    how rows are parted, so that equal parts are not looked at again
source     exact reads, hashed by the database
lake       one snapshot, hashed by Spark tasks
log        what the source's log did between two places
rounds     which rows are wrong, and why that is never a false alarm and never a miss; pure
standing   how far the lake is; the pipeline's state is read and never written
compare    all of it, table by table
"""

from snowmelt.verify.compare import Difference, Step, TableOutcome, TableVerdict, open_state, verify

__all__ = ["Difference", "Step", "TableOutcome", "TableVerdict", "open_state", "verify"]
