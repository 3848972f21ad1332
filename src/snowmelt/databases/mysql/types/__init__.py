"""Columns, and the Arrow types and values that they become."""
