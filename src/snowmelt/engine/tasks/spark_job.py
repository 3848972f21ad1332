"""Runs tasks as one Spark job."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from snowmelt.errors import SnowmeltError

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def run_on_spark(spark: Any, tasks: Sequence[Task], run: Callable[[Task], Answer]) -> list[Answer | SnowmeltError]:
    """Run each as a task of one Spark job. Answers come back pickled, never through the store; an error of ours is an answer."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                answer: Answer | SnowmeltError
                try:
                    answer = run(tasks[index])
                except SnowmeltError as error:
                    answer = error
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)], pa.binary())], names=["answer"])

    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, "answer binary")
    return [pickle.loads(bytes(row.answer)) for row in frame.collect()]
