"""Reading a stretch of a bucket's log: what a leader may answer, and files out of remote storage. Real logs: `test_fluss_reading`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import S3Store

from snowmelt.budgets import RetryBudget
from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken, SourceDrift, Unavailable
from snowmelt.fluss.answers import FetchedBucket, FetchFrom, RemoteLog, RemoteSegment
from snowmelt.fluss.formats.batches import OFFSET
from snowmelt.fluss.formats.types import FlussType, Root, Versions
from snowmelt.fluss.log import BucketReader, LogAccess
from snowmelt.fluss.remote import RemoteFiles
from snowmelt.model.fluss import Bucket
from tests.kit.fluss_bytes import arrow_body, log_batch, schema_of
from tests.kit.s3 import BUCKET, PASSWORD, S3Server, s3_server

BUCKET_ID = Bucket(7, 1)
SCHEMA = schema_of(FlussType(root=Root.BIGINT))
Answer = FetchedBucket | list[FetchedBucket] | Exception


def stretch(base: int, rows: int, *, schema_id: int = 1) -> bytes:
    batch = pa.RecordBatch.from_pydict({"c0": pa.array(range(base, base + rows), pa.int64())})
    return log_batch(arrow_body(batch), base=base, rows=rows, schema_id=schema_id)


def answered(data: bytes = b"", *, remote: RemoteLog | None = None, error: Any = None, bucket: Bucket = BUCKET_ID) -> FetchedBucket:
    return FetchedBucket(bucket, 100, data, remote, error)


class Leader:
    """Answers in order, the last one for ever, and remembers what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def fetch_log(self, wanted: Iterable[FetchFrom], *, bytes_max: int, wait_ms: int = 0) -> list[FetchedBucket]:
        (one,) = wanted
        self.asked.append(one.offset)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, list) else [answer]


def reader(leader: Leader, start: int, end: int, **options: Any) -> BucketReader:
    options = {"remote": RemoteFiles(), "pause": lambda seconds: None} | options
    return BucketReader(BUCKET_ID, start, end, access=LogAccess(source=leader, **options), versions=Versions.one(SCHEMA))


def offsets(reading: BucketReader) -> list[int]:
    return [offset for batch in reading.read() for offset in batch.column(OFFSET).to_pylist()]


def test_answers_follow_each_other_without_a_gap_and_without_a_row_twice() -> None:
    leader = Leader(answered(stretch(0, 4)), answered(), answered(stretch(0, 4) + stretch(4, 3)), answered(stretch(4, 3) + stretch(7, 5)))
    reading = reader(leader, 1, 9)
    assert offsets(reading) == list(range(1, 9))
    assert leader.asked == [1, 4, 4, 7]
    assert (reading.offset, reading.newer_schema) == (9, None)


def test_nothing_wanted_is_not_asked_for() -> None:
    leader = Leader(Unavailable("down"))
    assert offsets(reader(leader, 5, 5)) == []
    assert leader.asked == []
    with pytest.raises(InvariantBroken):
        reader(leader, 6, 5)


def test_a_log_that_begins_later_is_an_error_and_never_read_from_there() -> None:
    with pytest.raises(SourceDrift, match="does not have an offset any more"):
        offsets(reader(Leader(answered(stretch(4, 3))), 2, 7))
    with pytest.raises(SourceDrift, match="gone"):
        offsets(reader(Leader(answered(error=SourceDrift("gone"))), 2, 7))


def test_a_newer_schema_ends_the_stretch_before_it() -> None:
    reading = reader(Leader(answered(stretch(0, 2) + stretch(2, 2, schema_id=2))), 0, 4)
    assert offsets(reading) == [0, 1]
    assert (reading.offset, reading.newer_schema) == (2, 2)
    with pytest.raises(Corrupt, match="its table has not"):
        offsets(reader(Leader(answered(stretch(0, 2, schema_id=0))), 0, 2))


def test_a_leader_that_fails_is_asked_again_but_not_for_ever() -> None:
    pauses: list[float] = []
    down = Unavailable("down")
    leader = Leader(down, answered(error=Unavailable("leads no longer")), down, answered(stretch(0, 2)), down, answered(stretch(2, 2)))
    assert offsets(reader(leader, 0, 4, pause=pauses.append)) == [0, 1, 2, 3]
    assert len(pauses) == 4
    assert pauses[:3] == sorted(pauses[:3])
    leader = Leader(answered(stretch(0, 2)), down)
    reading = reader(leader, 0, 4, budget=RetryBudget(tries_max=4))
    with pytest.raises(Unavailable, match="down"):
        offsets(reading)
    assert leader.asked == [0, 2, 2, 2, 2]
    # Another one goes on.
    assert reading.offset == 2


def test_a_log_that_does_not_go_on_is_given_up() -> None:
    leader = Leader(answered(stretch(0, 2)), answered())
    with pytest.raises(Unavailable, match=r"7/1: at 2 of 4, its high watermark is 100"):
        offsets(reader(leader, 0, 4))
    assert len(leader.asked) < 100


def test_an_answer_for_another_bucket_is_refused() -> None:
    for answer in ([answered(bucket=Bucket(7, 2))], [], [answered(), answered()]):
        with pytest.raises(Corrupt, match="another bucket"):
            offsets(reader(Leader(answer), 0, 1))


SEGMENTS = (RemoteSegment("11111111-aaaa", 0, 4, 0), RemoteSegment("22222222-bbbb", 4, 8, 0))


def segments_in(folder: Path) -> RemoteLog:
    for segment in SEGMENTS:
        place = folder / segment.segment / f"{segment.start:020d}.log"
        place.parent.mkdir()
        place.write_bytes(stretch(segment.start, 2) + stretch(segment.start + 2, 2))
    return RemoteLog(str(folder), None, len(stretch(0, 2)), SEGMENTS)


def test_segments_are_read_from_where_the_first_one_is_said_to_begin(tmp_path: Path) -> None:
    remote = segments_in(tmp_path)
    leader = Leader(answered(remote=remote), answered(stretch(8, 2)))
    assert offsets(reader(leader, 3, 10)) == list(range(3, 10))
    assert leader.asked == [3, 8]
    assert offsets(reader(Leader(answered(remote=remote)), 2, 3)) == [2]
    with pytest.raises(SourceDrift, match="does not have"):
        offsets(reader(Leader(answered(remote=remote)), 1, 3))
    (tmp_path / "22222222-bbbb" / f"{4:020d}.log").write_bytes(b"")
    with pytest.raises(Unavailable, match="ends too early"):
        offsets(reader(Leader(answered(remote=remote), answered()), 2, 8))


def test_segments_that_can_not_be_are_refused(tmp_path: Path) -> None:
    segments_in(tmp_path)
    for remote, said in (
        (RemoteLog(str(tmp_path), None, 0, (RemoteSegment("../../etc", 0, 4, 0),)), "segment of its log that can't be one"),
        (RemoteLog(str(tmp_path), None, 0, (RemoteSegment("a", -1, 4, 0),)), "can't be one"),
        (RemoteLog(f"{tmp_path}/../x", None, 0, SEGMENTS), "can't be one"),
        (RemoteLog(str(tmp_path), None, 1 << 20, SEGMENTS), "after the end"),
    ):
        with pytest.raises(Corrupt, match=said):
            offsets(reader(Leader(answered(remote=remote)), 0, 8))
    with pytest.raises(Unavailable, match="not there any more"):
        offsets(reader(Leader(answered(remote=RemoteLog("/nowhere", None, 0, SEGMENTS))), 0, 8))
    for folder in ("hdfs://node/x", "oss://b/x"):
        with pytest.raises(InvalidConfig, match="can't be read from"):
            offsets(reader(Leader(answered(remote=RemoteLog(folder, None, 0, SEGMENTS))), 0, 8))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def test_segments_are_read_from_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    store = S3Store(BUCKET, config=s3.options(), client_options={"allow_http": True})
    for segment in SEGMENTS:
        obstore.put(
            store, f"fluss/log/{segment.segment}/{segment.start:020d}.log", stretch(segment.start, 2) + stretch(segment.start + 2, 2)
        )
    files = RemoteFiles(s3.options())
    for scheme in ("s3", "s3a"):
        remote = RemoteLog(f"{scheme}://{BUCKET}/fluss/log", None, 0, SEGMENTS)
        assert offsets(reader(Leader(answered(remote=remote)), 0, 8, remote=files, folder=tmp_path)) == list(range(8))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Unavailable, match=f"s3://{BUCKET}/nothing") as gone:
        files.bring(f"s3://{BUCKET}/nothing", tmp_path, "x")
    with pytest.raises(Unavailable) as away:
        RemoteFiles(s3.options() | {"endpoint": "http://127.0.0.1:9"}, retries_max=0, timeout_s=2).bring(f"s3://{BUCKET}/a", tmp_path, "y")
    assert PASSWORD not in f"{gone.value} {away.value}"
