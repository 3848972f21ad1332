"""Spark's classes for data sources in Python, which Spark has since 4.0."""

from __future__ import annotations

from pyspark import __version__

from snowmelt.errors import InvalidConfig

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ImportError as error:
    raise InvalidConfig(
        "a union read is a Python data source, which Spark has since 4.0",
        detail=f"pyspark {__version__}",
        hint="pip install 'pyspark>=4.0,<4.4'",
    ) from error

__all__ = ["DataSource", "DataSourceReader", "InputPartition"]
