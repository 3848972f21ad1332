"""Tiering of Fluss tables into the lake: the shell that moves the machines of `tiering` on real servers.

settings   what a service is to do
service    asks for tables that are due, and keeps the coordinator's patience
round      a round of one table, done step by step
listing    what Fluss has of a table
leasing    the thread that speaks for all leases
reading    a round's Spark job: cancelled as a whole, heard of split by split
tasks      a split, read and staged in a Spark worker
daemon     where those workers are forked from
ends       how rounds end, for whoever watches
"""
