"""Paimon tables kept small: `sinks.maintenance` for them. `care` is the door.

What is written here is in Paimon's own form: any of its engines reads the tables before, during and after, and may maintain them too.
"""
