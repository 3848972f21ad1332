"""Listeners of a pipeline: how they are called, and when."""
