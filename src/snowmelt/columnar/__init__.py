"""Bytes to Arrow without a Python object per row: compiled loads and stores, and arenas that batches live in."""
