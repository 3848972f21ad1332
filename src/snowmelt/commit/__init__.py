"""One coordinator commits the staged files of many writers exactly once. Pure: no I/O, no clock, no chance."""
