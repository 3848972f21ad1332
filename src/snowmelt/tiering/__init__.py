"""Tiering of Fluss tables into the lake: the decisions, without any effect.

offsets    how far a lake table has its Fluss table
splits     what a round reads of each bucket
fence      where a round begins, and whether it may still be published
rounds     one round of one table, from its hand-out to its end
leases     the book of KV snapshot leases
union      what a union read takes from the lake, and what from Fluss
"""
