"""`pipeline.yaml`, and the file of a tiering service: read once, checked whole, and every error names its line.

Laws:
- An error is one line: file and line, the key, what was found, what is allowed. All errors of a file are told at once.
- What may be a secret is never repeated: not the value of a key that we don't know, nor an address that may hold credentials.
- Text is text. YAML's own guesses (`no` is false, `1:30` is ninety) are not made; a key's type decides how its text is read.
- A file has limits: its bytes, its depth, and how much its aliases unfold to.
"""

from __future__ import annotations

from snowmelt.config.pipeline import PipelineConfig, read_pipeline
from snowmelt.config.tiering import TieringConfig, read_tiering

__all__ = ["PipelineConfig", "TieringConfig", "read_pipeline", "read_tiering"]
