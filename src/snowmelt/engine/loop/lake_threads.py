"""Threads that call a sink for several targets at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from snowmelt.engine.driver.judging import gravest
from snowmelt.errors import SnowmeltError

One = TypeVar("One")
Found = TypeVar("Found")


class LakeThreads:
    """Of one driver; used by the thread that owns the machines.

    Memory: as many threads as the sink allows, and what the caller hands over.
    """

    def __init__(self, at_once: int) -> None:
        """`at_once`: how many targets a sink can be asked for at once (`Sink.at_once`). 1: everything is done in the caller's thread."""
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="snowmelt-lake") if at_once > 1 else None

    def begin(self, act: Callable[[], Found]) -> Future[Found]:
        """Do something. In the caller's thread it is over on return."""
        if self._pool is not None:
            return self._pool.submit(act)
        future = Future[Found]()
        try:
            future.set_result(act())
        except Exception as error:
            future.set_exception(error)
        return future

    def each(self, act: Callable[[One], Found], ones: Iterable[One]) -> list[Found]:
        """Do something with each of them, and give the results in their order. If one fails, no other is begun, and those that are under
        way come to their end first."""
        if self._pool is None:
            return [act(one) for one in ones]
        futures = [self.begin(partial(act, one)) for one in ones]
        end_all(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """What was begun comes to its end, so that no thread of this driver is at work beside the next driver."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def end_all(futures: Sequence[Future[Found]]) -> None:
    """Wait until all are over. If one failed, drop those that were not begun, and raise the error that decides. What is none of our
    errors is a bug, and comes first."""
    under_way = wait(futures, return_when=FIRST_EXCEPTION).not_done
    wait([future for future in under_way if not future.cancel()])
    errors = [error for future in futures if not future.cancelled() for error in [future.exception()] if error is not None]
    for error in errors:
        if not isinstance(error, SnowmeltError):
            raise error
    if errors:
        raise gravest([error for error in errors if isinstance(error, SnowmeltError)])


def failed(future: Future[Found]) -> bool:
    """Whether it is over, with an error."""
    return future.done() and future.exception() is not None
