"""Lake tables: created, written by tasks, committed by the coordinator."""
