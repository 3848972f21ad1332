"""Reads of tables: chunks, exact reads with their marks, rows to Arrow."""
