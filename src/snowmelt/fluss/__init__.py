"""Apache Fluss: its server, its protocol, and its tables as Arrow."""
