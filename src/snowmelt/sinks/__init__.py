"""Sinks: where a pipeline's tables are. `contract` says what the engine may know of them, `registry` opens them."""
