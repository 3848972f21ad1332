"""Maintenance of lake tables beside the stream, or for one round without one. What is done next is decided in `maintenance.lane`, and for
another number of buckets in `maintenance.rescale` (`rescales`).

Laws:
- Nothing here stops or delays an epoch, but for the end of a rescale. Rewrites and searches for orphans are Spark jobs of a lane and a
  budget of their own, everything else is done by a thread of its own.
- A failure concerns the maintenance of one table: it is logged once and tried again with back-off.
- What a rewrite has staged is published by the driver that launched it, deleted by it after a give-up, or found by a sweep
  (`commit.cleaning`): by this driver's once the rewrite is over, by a later driver's once that one has committed to the table.
"""
