"""Rows of Fluss as bytes: types, batches, compacted rows, buckets."""
