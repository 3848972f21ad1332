"""The order of a driver's effects, without I/O: what it reads, writes, reports and releases, and after what. The engine and the simulated
world perform these same steps."""
