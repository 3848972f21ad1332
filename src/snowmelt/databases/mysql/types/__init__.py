"""Columns, and what becomes of their values."""
