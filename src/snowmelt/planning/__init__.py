"""Where snapshot and log meet: the life of tables and chunks, planning, adoption and release. Pure: no I/O, no clock, no chance."""
