"""Tiering of Fluss tables into the lake: the shell that runs the machines of `tiering` on real servers.

settings   the settings of a service
service    asks for due tables, and sends the heartbeats
round      a round of one table, step by step
listing    what Fluss has of a table
leasing    the thread that makes all calls about leases
reading    a round's Spark job: cancelled as a whole, reported split by split
tasks      a split, read and staged in a Spark worker
daemon     the process that forks those workers
ends       how rounds end, for observers
"""
