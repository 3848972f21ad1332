"""A hostile world for the pure machines, from one seed: `python -m tests.sim --seeds 1000`. See `world` for what lives in it."""
