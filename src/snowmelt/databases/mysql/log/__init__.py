"""The log: captured raw, kept as segments, decoded to Arrow."""
