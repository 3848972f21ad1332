"""Buckets: what becomes of their failures, and what nobody may see."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator

import pytest

from snowmelt.credentials import Secret
from snowmelt.errors import InvalidConfig, InvariantBroken, OutcomeUnknown, SnowmeltError, Unavailable
from snowmelt.store.contract import Store, numbered
from snowmelt.store.local import LocalStore
from snowmelt.store.memory import MemoryStore
from snowmelt.store.numbered import Lost, Won, settle
from snowmelt.store.objects import ObjectStore, open_store
from tests.kit.s3 import BUCKET, PASSWORD, S3Server, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as started:
        yield started


@pytest.fixture
def s3(server: S3Server, request: pytest.FixtureRequest) -> Iterator[S3Server]:
    server.faults.clear()
    server.method = "PUT"
    yield server
    server.faults.clear()


def bucket(server: S3Server, name: str = BUCKET, *, retries_max: int = 0, timeout_s: float = 5, **options: str) -> Store:
    return open_store(f"s3://{name}/prefix", server.options() | options, retries_max=retries_max, timeout_s=timeout_s)


@pytest.mark.parametrize(("fault", "there"), [("lost-request", None), ("lost-reply", b"x"), ("503-before", None), ("503-after", b"x")])
def test_a_write_that_failed_may_have_happened(s3: S3Server, fault: str, there: bytes | None) -> None:
    store, key = bucket(s3), f"write/{fault}"
    s3.faults = [fault]
    with pytest.raises(OutcomeUnknown, match=f"s3://{BUCKET}/prefix: {key}: (connection closed|status 503)"):
        store.put_if_absent(key, b"x")
    assert store.get(key) == there


@pytest.mark.parametrize("retries_max", [0, 3])
@pytest.mark.parametrize("fault", ["lost-request", "lost-reply", "503-before", "503-after"])
def test_a_writer_knows_that_it_won_whichever_message_was_lost(s3: S3Server, fault: str, retries_max: int) -> None:
    store, key = bucket(s3, retries_max=retries_max), f"settle/{fault}-{retries_max}"
    s3.faults = [fault]
    assert settle(store, key, b"mine") == Won()
    s3.faults = [fault]
    assert settle(store, key, b"yours") == Lost(b"mine")


def test_a_client_that_repeats_by_itself_is_refused_by_its_own_record(s3: S3Server) -> None:
    # Why False is no proof that another won. If this fails, the client has learnt to tell.
    s3.faults = ["lost-reply"]
    assert not bucket(s3, retries_max=3).put_if_absent("repeated/x", b"mine")


@pytest.mark.parametrize("fault", ["lost-request", "lost-reply", "503-before"])
def test_a_read_that_failed_tells_nothing(s3: S3Server, fault: str) -> None:
    s3.method = "GET"
    store = bucket(s3)
    for call in (lambda: store.get("x"), lambda: store.numbers("x"), lambda: store.read_into("x", 0, memoryview(bytearray(9)))):
        s3.faults = [fault]
        with pytest.raises(Unavailable, match=r"connection closed|status 503"):
            call()


def test_a_delete_that_failed_may_be_done_again(s3: S3Server) -> None:
    store = bucket(s3)
    store.put_if_absent("delete/x", b"x")
    s3.method = "DELETE"
    s3.faults = ["lost-reply"]
    # A single object is deleted by a request of one or of many, as the client likes.
    try:
        store.delete(["delete/x"])
    except Unavailable:
        store.delete(["delete/x"])
    assert store.get("delete/x") is None


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_server_that_is_not_there_is_unavailable_or_unknown(s3: S3Server, method: str) -> None:
    store = bucket(s3, endpoint="http://127.0.0.1:1")
    with pytest.raises((Unavailable, OutcomeUnknown), match="connection refused"):
        store.get("x") if method == "GET" else store.put_if_absent("x", b"")


def test_a_server_that_does_not_answer_is_not_waited_for_longer_than_told(s3: S3Server) -> None:
    store = bucket(s3, timeout_s=0.3)
    with s3._lock:
        with pytest.raises(Unavailable, match="timed out"):
            store.get("slow/x")
        with pytest.raises(OutcomeUnknown, match="timed out"):
            store.put_if_absent("slow/x", b"x")


def every_call(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.get("x"),
        lambda: store.put_if_absent("x", b""),
        lambda: store.put_data("x", b""),
        lambda: store.numbers("x"),
        lambda: store.delete(["x"]),
    ]


def test_a_bucket_that_is_not_there_is_no_empty_store(s3: S3Server) -> None:
    for call in every_call(bucket(s3, "elsewhere")):
        with pytest.raises(InvalidConfig, match="bucket does not exist"):
            call()


def test_a_refusal_is_for_the_user_to_mend(s3: S3Server) -> None:
    for method, call in zip(("GET", "PUT", "PUT", "GET"), every_call(bucket(s3)), strict=False):
        s3.method = method
        s3.faults = ["403"]
        with pytest.raises(InvalidConfig, match=r"refuses access: .*status 403.*hint: it needs the rights"):
            call()


def test_a_store_without_conditions_is_refused_at_the_first_put(s3: S3Server) -> None:
    with pytest.raises(InvalidConfig, match="can't put if absent"):
        bucket(s3, conditional_put="disabled").put_if_absent("x", b"")


# ---- what nobody may see


def everything_said(error: BaseException) -> str:
    return str(error) + repr(error) + "".join(traceback.format_exception(error))


def test_no_error_and_no_repr_shows_a_credential(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNOWMELT_TEST_KEY", PASSWORD)
    options: dict[str, str | Secret] = {**s3.options(), "secret_access_key": Secret("${SNOWMELT_TEST_KEY}")}
    endpoint = s3.endpoint.replace("http://", f"http://user:{PASSWORD}@") + f"/?sig={PASSWORD}"
    said = ""
    for changed in ({}, {"endpoint": endpoint}, {"token": PASSWORD, "endpoint": "http://127.0.0.1:1"}):
        store = open_store(f"s3://{BUCKET}/prefix", options | changed, retries_max=0)
        said += repr(store) + str(store)
        for fault in ("403", "503-before", "lost-request"):
            for method, call in zip(("GET", "PUT", "PUT", "GET"), every_call(store), strict=False):
                s3.method = method
                s3.faults = [fault]
                with pytest.raises(SnowmeltError) as raised:
                    call()
                said += everything_said(raised.value)
    assert f"s3://{BUCKET}/prefix" in said
    assert PASSWORD not in said


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKID:hunter2@bucket/prefix",
        "s3://hunter2@bucket",
        "s3://bucket/prefix?token=hunter2",
        "s3://bucket#hunter2",
        "s3://bucket:80/hunter2",
        "s3://bucket:hunter2/",
        "s3://[hunter2/",
        "az://account:hunter2@container",
        "memory://x?hunter2",
        "file://hunter2/path",
        "file:///path?hunter2",
        "https://user:hunter2@host/bucket",
        "hdfs://host/hunter2",
        "s3://",
        "s3:///hunter2",
        "s3://buck et/hunter2",
        "s3://bucket/../hunter2",
        "s3://bucket/a//hunter2",
        "gs://bucket/hunter2%2f",
    ],
)
def test_an_address_that_can_not_be_is_refused_and_what_may_be_secret_in_it_not_repeated(url: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_store(url)
    assert "hunter2" not in everything_said(raised.value)


@pytest.mark.parametrize("option", [{"nonsense": "hunter2"}, {"allow_http": "hunter2"}, {"conditional_put": "hunter2"}])
def test_an_option_that_can_not_be_is_refused_by_name(option: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_store("s3://bucket", option)
    assert "hunter2" not in str(raised.value)


def test_a_store_does_not_travel(s3: S3Server) -> None:
    with pytest.raises(InvariantBroken, match="open it where it is used"):
        pickle.dumps(bucket(s3))


def test_a_forked_process_is_told_instead_of_waiting_for_ever(s3: S3Server) -> None:
    store = bucket(s3)
    store.put_if_absent("fork/x", b"x")
    child = os.fork()
    if child == 0:
        # Nobody else would end it if it did wait.
        signal.alarm(20)
        try:
            store.get("fork/x")
        except InvariantBroken:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# ---- addresses


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "ObjectStore('s3://bucket')"),
        ("s3://bucket/", "ObjectStore('s3://bucket')"),
        ("s3://bu.ck-et/a/b=c/", "ObjectStore('s3://bu.ck-et/a/b=c')"),
        ("gs://bucket/a", "ObjectStore('gs://bucket/a')"),
        ("az://container/a", "ObjectStore('az://container/a')"),
        ("memory://", "MemoryStore()"),
        ("/a/b", "LocalStore('/a/b')"),
        ("file:///a/b%20c", "LocalStore('/a/b c')"),
        ("file://localhost/a", "LocalStore('/a')"),
        ("/a:b@c?d#e", "LocalStore('/a:b@c?d#e')"),
    ],
)
def test_an_address_says_what_kind_of_store_it_is(url: str, shown: str) -> None:
    options = {"account_name": "x", "account_key": "eA=="} if url.startswith("az") else {}
    assert repr(open_store(url, options)) == shown


def test_kinds_of_stores(tmp_path: object) -> None:
    assert isinstance(open_store(str(tmp_path)), LocalStore)
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_store("s3://bucket"), ObjectStore)


RACER = """
import sys
from snowmelt.store.contract import numbered
from snowmelt.store.objects import open_store
from tests.kit.s3 import BUCKET, KEY_ID, PASSWORD
options = {"endpoint": sys.argv[1], "region": "us-east-1", "access_key_id": KEY_ID, "secret_access_key": PASSWORD}
store = open_store(f"s3://{BUCKET}/race", options)
print("ready", flush=True)
sys.stdin.readline()
print(*[n for n in range(100) if store.put_if_absent(numbered("claim", n), sys.argv[2].encode())])
"""


def test_of_two_processes_exactly_one_wins_each_number(s3: S3Server) -> None:
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, s3.endpoint, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    ones, twos = ([int(number) for number in racer.communicate()[0].split()] for racer in racers)
    assert sorted(ones + twos) == list(range(100))
    store = open_store(f"s3://{BUCKET}/race", s3.options())
    assert all(store.get(numbered("claim", number)) == (b"one" if number in ones else b"two") for number in range(100))
