"""The database's side of a comparison: SQL that hashes rows, and what the log did to them."""
