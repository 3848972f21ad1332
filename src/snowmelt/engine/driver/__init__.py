"""The driver: the epoch loop, and what its thread owns."""
