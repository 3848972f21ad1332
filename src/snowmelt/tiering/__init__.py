"""Tiering of Fluss tables into the lake: what is decided, without doing any of it. `leases` is the book of KV snapshot leases."""
