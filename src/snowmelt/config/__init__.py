"""`pipeline.yaml`, and the file of a tiering service: read once, checked whole, and every error names its line.
The rules for its texts and errors are those of `sections`.
"""

from __future__ import annotations

from snowmelt.config.pipeline import PipelineConfig, read_pipeline
from snowmelt.config.tiering import TieringConfig, read_tiering

__all__ = ["PipelineConfig", "TieringConfig", "read_pipeline", "read_tiering"]
