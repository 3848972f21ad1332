"""The log in flight: what of the captured log is kept, and where capture resumes. Pure: no I/O."""
