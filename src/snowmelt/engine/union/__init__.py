"""Union reads: a Fluss table as of now, from the lake and from the log that the lake does not have yet. `tiering.union` decides it.

options     the options of a read
plan        what its tasks read, fixed once
holder      holds the lease of what they read
protection  keeps a task's KV snapshot from deletion
merge       the last change of each key
tasks       one share, read by Spark's workers
source      the data source that Spark sees
"""
