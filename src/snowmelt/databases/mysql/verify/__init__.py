"""The database's side of a comparison: SQL that hashes rows, and the log's changes of them."""
