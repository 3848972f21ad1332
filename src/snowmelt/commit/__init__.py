"""One coordinator commits what many writers staged, exactly once. Pure: no I/O, no clock, no chance."""
