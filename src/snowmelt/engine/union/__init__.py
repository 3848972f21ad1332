"""Union reads: a Fluss table as it is now, from the lake and from the log that the lake does not have yet. `tiering.union` decides it.

options     what a read is told
plan        what its tasks read, fixed once
holder      holds the lease of what they read
protection  what keeps a task's KV snapshot from deletion
merge       the last change of each key
tasks       a share of it, read by Spark's workers
source      the data source that Spark sees
"""
