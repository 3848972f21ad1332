"""Tiering of Apache Fluss tables into the lake: what is decided, by nobody who can act."""
