"""A driver's order of effects, without I/O: what is read, put, told and let go of, and after what. The engine and the simulated world move
these same steps."""
