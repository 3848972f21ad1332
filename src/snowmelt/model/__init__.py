"""Frozen values that every room speaks in. No I/O, no clock, no chance."""
