"""A warehouse in a bucket: its options, and what its server says. And what a worker is told that is not fit."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from snowmelt.credentials import Secret
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.tasks import workers
from snowmelt.engine.tasks.context import TaskContext
from snowmelt.engine.tasks.jobs import spark_error
from snowmelt.engine.tasks.workers import Expected, check_packages, look_around, owner_digest, packages
from snowmelt.errors import Corrupt, InvalidConfig, InvariantBroken, SnowmeltError, Unavailable
from snowmelt.sinks.paimon.table import our_errors
from snowmelt.sinks.warehouse import Warehouse, check_marked, mark, store_at, warehouse_of
from snowmelt.store.contract import numbered
from snowmelt.store.generations import take_generation
from snowmelt.store.objects import open_store
from tests.kit.s3 import BUCKET, KEY_ID, PASSWORD, S3Server, s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def in_bucket(s3: S3Server, folder: Path, prefix: str) -> Warehouse:
    (folder / "key").write_text(KEY_ID)
    (folder / "secret").write_text(PASSWORD)
    options = {"fs.s3.endpoint": s3.endpoint, "s3a.region": "us-east-1"}
    secrets = {"s3.access.key": Secret(f"file:{folder}/key"), "fs.s3.accessKeySecret": Secret(f"file:{folder}/secret")}
    return warehouse_of(f"s3://{BUCKET}/{prefix}", options | secrets)


def test_options_are_settled_under_the_names_that_every_client_knows(s3: S3Server, tmp_path: Path) -> None:
    warehouse = in_bucket(s3, tmp_path, "lake")
    assert PASSWORD not in repr(warehouse)
    settled = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1", "s3.access-key": KEY_ID, "s3.secret-key": PASSWORD}
    assert warehouse.reveal() == settled


def test_a_region_comes_from_the_environment_or_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidConfig, match=r"region of the warehouse's bucket is unknown: s3://b/lake \(hint: add s3.region"):
        warehouse_of("s3://b/lake", {}).reveal()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert warehouse_of("s3://b/lake", {}).reveal() == {"s3.region": "eu-central-1"}
    assert warehouse_of("/data/lake", {}).reveal() == {}


def test_of_two_that_publish_one_snapshot_in_a_bucket_one_wins(s3: S3Server, tmp_path: Path) -> None:
    """Under a name that keys of the state's store could not have."""
    options = in_bucket(s3, tmp_path, "race").reveal()
    won: list[int] = []
    barrier = threading.Barrier(8)

    def publish(number: int) -> None:
        store = store_at(f"s3://{BUCKET}/race/ods.db/order lines ä", options)
        barrier.wait()
        if store.put_if_absent("snapshot/snapshot-1", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store_at(f"s3://{BUCKET}/race/ods.db/order lines ä", options).get("snapshot/snapshot-1") == str(won[0]).encode()


def test_a_mark_tells_one_warehouse_from_another(s3: S3Server, tmp_path: Path) -> None:
    for first, second in (
        (in_bucket(s3, tmp_path, "one"), in_bucket(s3, tmp_path, "two")),
        (str(tmp_path / "one"), warehouse_of(f"file://{tmp_path}/two", {})),
    ):
        found = mark(first)
        assert mark(first) == found
        check_marked(first, found)
        with pytest.raises(InvalidConfig, match=r"a Spark worker does not see the warehouse: .* has no mark of the driver's"):
            check_marked(second, found)
        assert mark(second) != found
        with pytest.raises(InvalidConfig, match=r"is another warehouse \(hint: put the warehouse into a bucket, or into a folder"):
            check_marked(second, found)


def test_a_bucket_that_is_away_or_refuses_is_not_taken_for_wrong_rows() -> None:
    """As pypaimon's two halves said it of moto's server, shortened; the second half of each text quotes the server's answer."""
    gone = "Paimon hitting unexpected error Failed to create directory 's3://b/t/': Unexpected (temporary) at write => send http request"
    denied = 'Paimon hitting unexpected error Failed: PermissionDenied (permanent) at write => S3Error { code: "x", message: "hunter2" }'
    region = "IO operation failed on underlying storage: ConfigInvalid (permanent) at Builder::build => region is missing."
    lost = OSError("When getting information for key 'k' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject: curlCode: 7")
    status = OSError("When listing objects: AWS Error UNKNOWN (HTTP status 403) during ListObjectsV2: Message: hunter2")
    wrapped = RuntimeError("Failed to load schema from path")
    wrapped.__cause__ = status
    bucket = OSError("Bucket 'nobucket' not found. To create buckets, enable the allow_bucket_creation option.")
    for error, kind, told in (
        (ValueError(gone), Unavailable, "a lake table can't be read or written: ods.t: Unexpected (hint: is its storage there"),
        (ValueError(denied), InvalidConfig, "the warehouse refuses access: ods.t: PermissionDenied (hint: check the credentials"),
        (ValueError(region), InvalidConfig, "the warehouse's options can't be used: ods.t: ConfigInvalid (hint: check sink.options)"),
        (lost, Unavailable, "a lake table can't be read or written: ods.t: NETWORK_CONNECTION"),
        (wrapped, InvalidConfig, "the warehouse refuses access: ods.t: HTTP status 403"),
        (bucket, InvalidConfig, "the warehouse's bucket does not exist: ods.t"),
        (PermissionError(errno.EACCES, "no"), InvalidConfig, "the warehouse refuses access: ods.t: Permission denied (hint: who owns"),
        (ValueError("column v: 'hunter2' is too long"), InvariantBroken, "rows do not fit into a lake table: ods.t: ValueError"),
    ):
        with pytest.raises(SnowmeltError) as caught, our_errors("ods.t", rows=True):
            raise error
        assert type(caught.value) is kind
        assert str(caught.value).startswith(told)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(Corrupt), our_errors("ods.t"):
        raise ValueError("not JSON")


# ---- workers


def expected(folder: Path) -> Expected:
    open_store(folder / "state").put_if_absent(numbered("owner", 1), b"somebody")
    warehouse = str(folder / "lake")
    digest = owner_digest(folder / "state")
    return Expected(packages=packages(), state=folder / "state", owner=digest, warehouse=warehouse, mark=mark(warehouse))


def test_a_worker_that_sees_all_that_the_driver_sees_is_fit(tmp_path: Path) -> None:
    assert look_around(expected(tmp_path), 0)


def test_a_worker_on_another_machine_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.socket, "gethostname", lambda: "worker-7")
    wanted = expected(tmp_path)
    (tmp_path / "lake").rename(tmp_path / "not-mounted")
    with pytest.raises(InvalidConfig, match=r"^a Spark worker does not see the warehouse: .*/lake on worker-7 has no mark"):
        look_around(wanted, 0)
    (tmp_path / "state").rename(tmp_path / "not-mounted-either")
    with pytest.raises(InvalidConfig, match=r"^a Spark worker does not see the pipeline's state: .*/state on worker-7 is not what"):
        look_around(wanted, 0)


def test_a_task_on_an_executor_that_joined_late_looks_for_itself(tmp_path: Path) -> None:
    found = mark(str(tmp_path / "lake"))
    state = take_generation(open_store(tmp_path / "state"), "nonce")
    place = TaskContext(
        generation=state.number,
        nonce=state.nonce,
        state=tmp_path / "state",
        warehouse=str(tmp_path / "lake"),
        user="test",
        source=MySql(),
        identity="somebody",
        log="binlog.000001",
        packages=packages(),
        mark=found,
    )
    place.check()
    with pytest.raises(InvalidConfig, match="a Spark worker does not see the warehouse"):
        replace(place, warehouse=str(tmp_path / "elsewhere")).check()
    with pytest.raises(InvalidConfig, match="a Spark worker has other packages than the driver"):
        replace(place, packages=(("snowmelt", "0.0.9"),)).check()


def test_a_worker_without_a_secret_says_which_and_where(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.socket, "gethostname", lambda: "worker-7")
    wanted = expected(tmp_path)
    options = {"s3.region": "x", "s3.endpoint": s3.endpoint, "s3.secret-key": Secret("${NOT_THERE}")}
    elsewhere = Expected(
        packages=packages(), state=wanted.state, owner=wanted.owner, warehouse=warehouse_of(f"s3://{BUCKET}/x", options), mark="x"
    )
    with pytest.raises(InvalidConfig, match=r"^environment variable NOT_THERE is not set: on the worker worker-7 \("):
        look_around(elsewhere, 0)


def test_a_worker_with_other_packages_is_told_both_versions() -> None:
    check_packages(packages())
    check_packages(())
    wanted = tuple((name, "0.0.9" if name == "snowmelt" else version) for name, version in packages())
    with pytest.raises(InvalidConfig, match=r"^a Spark worker has other packages than the driver: snowmelt .* on .*, 0.0.9 in the driver"):
        check_packages(wanted)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Error from python worker:\n  /usr/bin/python3: Error while finding module specification for 'snowmelt.engine.tasks.daemon' "
            "(ModuleNotFoundError: No module named 'snowmelt')\nPYTHONPATH was:\n  x",
            "a module is not installed where Spark's workers run: snowmelt (hint: install snowmelt and its extras where",
        ),
        ("\nModuleNotFoundError: No module named 'pyarrow'\n", "a module is not installed where Spark's workers run: pyarrow (hint"),
        (
            'java.io.IOException: Cannot run program "/opt/python": error=2, No such file or directory',
            "Spark's workers can't start Python: /opt/python (hint",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark cannot run",
            "Spark's workers have another version of Python than the driver (hint",
        ),
    ],
)
def test_workers_that_no_repetition_makes_fit_are_a_wrong_configuration(said: str, told: str) -> None:
    error = spark_error(Exception(f"An error occurred while calling o52.collectToPython.\n: org.apache.spark.SparkException: {said}"))
    assert isinstance(error, InvalidConfig)
    assert str(error).startswith(told)
