"""Tiering of Fluss tables into the lake: the shell that moves the machines of `tiering` on real servers. `leasing` holds the leases."""
