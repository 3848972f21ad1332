"""A Fluss server that asks for SASL/PLAIN: the sink, the tiering service and union reads log in, and a wrong password is told."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import snowmelt
from snowmelt.credentials import Secret
from snowmelt.engine.tiering.service import check_ends
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.errors import InvalidConfig, SnowmeltError
from snowmelt.fluss.client import connect_coordinator
from snowmelt.fluss.target import FlussTarget, Login
from snowmelt.sinks.fluss.sink import FlussSink
from tests.integration.fluss_sink_table import Sink
from tests.integration.tiering import RunningTiering, in_order, lake_rows
from tests.kit.fluss_servers import PASSWORD, USER, SaslFluss


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslFluss]:
    server = SaslFluss.begin(tmp_path_factory.mktemp("sasl"))
    yield server
    server.kill()


def login(folder: Path, password: str = PASSWORD) -> Login:
    file = folder / "password"
    file.write_text(password)
    return Login(USER, Secret(f"file:{file}"))


def settings(server: SaslFluss, login: Login | None, **more: Any) -> TieringSettings:
    given: dict[str, Any] = {"name": "test", "bootstrap": server.sasl_bootstrap, "poll_s": 0.1, **more}
    return TieringSettings(warehouse=str(server.warehouse), login=login, **given)


class LoggedIn(Sink):
    login: Login

    def driver(self) -> FlussSink:
        assert isinstance(self.server, SaslFluss)
        return FlussSink(FlussTarget(self.server.sasl_bootstrap, freshness_s=1.0, login=self.login), str(self.state))


@pytest.mark.timeout(240)
def test_the_sink_the_service_and_union_reads_log_in(asking: SaslFluss, spark: Any, tmp_path: Path) -> None:
    user = login(tmp_path)
    sink = LoggedIn(asking, None, tmp_path / "state")  # type: ignore[arg-type]
    sink.login = user
    lake = sink.made()
    sink.bring(lake, 1, (1, "one"), (2, "two"), (3, "three"))
    first = in_order([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}, {"id": 3, "name": "three"}])
    with RunningTiering(spark, settings(asking, user)) as running:
        running.wait_for(lambda: lake_rows(asking.warehouse, sink.path) == first)
    assert not [end for end in running.ends if end.error is not None]
    # The lake has the first, and the log alone has the second.
    sink.bring(lake, 2, (2, "changed"), (4, "four"))
    lake.close()
    found = snowmelt.union_read(
        spark,
        str(sink.path),
        bootstrap=asking.sasl_bootstrap,
        warehouse=str(asking.warehouse),
        username=USER,
        password=user.password.reference,
    )
    rows = sorted((row.id, row.name) for row in found.collect())
    assert rows == [(1, "one"), (2, "changed"), (3, "three"), (4, "four")]


def test_a_wrong_password_is_one_line_that_does_not_tell_it(asking: SaslFluss, spark: Any, tmp_path: Path) -> None:
    user = login(tmp_path, "not the password")

    def read() -> None:
        snowmelt.union_read(
            spark,
            "a.b",
            bootstrap=asking.sasl_bootstrap,
            warehouse=str(asking.warehouse),
            username=USER,
            password=user.password.reference,
        )

    for act in (
        lambda: check_ends(settings(asking, user)),
        lambda: FlussSink(FlussTarget(asking.sasl_bootstrap, login=user), str(tmp_path / "state")).exists("a.b"),
        read,
    ):
        with pytest.raises(InvalidConfig, match=r"Fluss refuses to authenticate us.*Invalid username or password.*check username") as told:
            act()
        assert "not the password" not in str(told.value)
        assert len(str(told.value).splitlines()) == 1


def test_a_login_that_is_missing_or_that_nobody_asks_for_is_told(asking: SaslFluss, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"Fluss refuses to authenticate us.*check username and password"):
        connect_coordinator(asking.sasl_bootstrap)
    with pytest.raises(InvalidConfig, match=r"Fluss refuses to authenticate us.*leave both out"):
        connect_coordinator(asking.bootstrap, login(tmp_path))


def test_what_travels_to_tasks_is_the_reference(tmp_path: Path) -> None:
    user = login(tmp_path)
    assert PASSWORD.encode() not in pickle.dumps(user)
    assert PASSWORD not in repr(user)
    assert user.token() == f"\0{USER}\0{PASSWORD}".encode()


def test_a_login_without_a_password_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    for user in (login(tmp_path, ""), Login("", Secret()), login(tmp_path, "a\0b")):
        with pytest.raises(SnowmeltError, match="needs a name and a password"):
            user.token()
