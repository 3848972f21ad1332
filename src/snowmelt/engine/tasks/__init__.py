"""Spark jobs and their tasks: chunk reads, and shares of the log."""
