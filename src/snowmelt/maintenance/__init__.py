"""Lake tables kept small: what is rewritten, what expires, what is deleted, and when. Pure; sinks and the engine do it.

Laws:
- Maintenance changes the form of a table and never what a reader gets. It is never part of an intent, with one exception: another number
  of buckets (`rescale`), for which the following laws do not hold.
- A rewrite is published only on a snapshot that still has all its input files. Otherwise it is given up.
- Of each key the output has the row with the greatest `_seq`. A delete is dropped only where every older file of the bucket is an input.
- A rewrite is published by the newest driver alone: the table's newest commit of ours must not be of a newer generation. So a file that
  an older driver's rewrite staged may be deleted once a newer driver has committed to the table.
- A published rewrite carries our newest commit's properties, so that the newest snapshot names the epoch that it has.
"""
