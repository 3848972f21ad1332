"""A server that is not what it seems: nothing is given away, and each lie ends in one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from snowmelt import preflight
from snowmelt.budgets import RetryBudget
from snowmelt.cli.main import main
from snowmelt.credentials import Secret
from snowmelt.databases.mysql import catalog, handshake
from snowmelt.databases.mysql.connect import MySqlOptions, Session, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.log.capture import Capture
from snowmelt.errors import Corrupt, InvalidConfig, SnowmeltError, Unavailable
from tests.kit.certificates import make_certificates
from tests.kit.lying_server import (
    END,
    MORE_RESULTS,
    OK,
    LyingServer,
    Row,
    Script,
    Told,
    announces_and_is_silent,
    answers,
    answers_without_end,
    asks_for,
    asks_in_the_oldest_way,
    breaks_tls_then,
    column,
    error,
    greets_with,
    greets_without_end,
    says,
    says_byte_by_byte,
    switches_to,
    tells,
)

PASSWORD = "Tell-Nobody-77"

ASKING: dict[str, Script] = {
    "clear": asks_for("mysql_clear_password"),
    "dialog": asks_for("dialog"),
    "old": asks_for("mysql_old_password"),
    "oldest": asks_in_the_oldest_way,
    "caching-sha2": greets_with("caching_sha2_password"),
    "switch-to-caching-sha2": switches_to("caching_sha2_password"),
    "sha256": greets_with("sha256_password"),
    "switch-to-sha256": switches_to("sha256_password"),
    "clear-in-greeting": greets_with("mysql_clear_password"),
}
NOISE = bytes(range(200, 255)) + b"\0" + bytes(range(60))
FORGED = b"\x1b[2J\x1b[31mred\x1b]0;title\x07\nsnowmelt: all is well \xc2\x9b31m\xe2\x80\xae"


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", PASSWORD)


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    made = make_certificates(tmp_path_factory.mktemp("certificates") / "own", "127.0.0.1")
    return made.cert, made.key


def options(server: LyingServer, **changed: object) -> MySqlOptions:
    plain = {"port": server.port, "username": "repl", "password": Secret("${DB_PASSWORD}"), "connect_timeout_s": 5.0}
    return MySqlOptions(**(plain | changed))  # type: ignore[arg-type]


def check(server: LyingServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[object, str]:
    """`snowmelt check`: its exit code and all that it prints."""
    monkeypatch.setattr("sys.argv", ["snowmelt", "check", "--port", str(server.port), "--user", "repl", "--tables", "a.*", *more])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capfd.readouterr()
    assert "Traceback" not in told.err
    assert PASSWORD not in told.out + told.err
    return ended.value.code, told.out + told.err


class TestThePasswordIsNotGivenAway:
    @pytest.mark.parametrize("how", ASKING)
    def test_to_a_server_that_asks_for_it_without_tls(
        self, how: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with LyingServer(ASKING[how]) as server:
            code, told = check(server, capfd, monkeypatch)
            with pytest.raises(SnowmeltError):
                Session(options(server, tls=Tls.DISABLED))
        assert code in (1, 2)
        assert len(told.strip().splitlines()) == 1
        assert not server.heard(PASSWORD.encode())
        assert server.connections == 2

    @pytest.mark.parametrize("tls", [Tls.PREFERRED, Tls.REQUIRED])
    @pytest.mark.parametrize("how", ASKING)
    def test_to_a_server_that_asks_for_it_with_a_certificate_of_its_own(self, how: str, tls: Tls, self_signed: tuple[Path, Path]) -> None:
        with LyingServer(ASKING[how], certificate=self_signed) as server, pytest.raises(SnowmeltError):
            Session(options(server, tls=tls))
        assert not server.heard(PASSWORD.encode())

    @pytest.mark.parametrize("tls", [Tls.VERIFY_CA, Tls.VERIFY_IDENTITY])
    def test_to_a_server_whose_certificate_is_of_another_authority(self, tls: Tls, self_signed: tuple[Path, Path], tmp_path: Path) -> None:
        authority = make_certificates(tmp_path / "ours", "127.0.0.1").ca
        with LyingServer(ASKING["clear"], certificate=self_signed) as server, pytest.raises(InvalidConfig, match="TLS"):
            Session(options(server, tls=tls, tls_ca=str(authority)))
        assert not server.heard(PASSWORD.encode())

    @pytest.mark.parametrize("how", ["clear", "dialog", "switch-to-caching-sha2", "switch-to-sha256"])
    def test_by_the_capture_of_a_log(self, how: str, tmp_path: Path) -> None:
        with LyingServer(ASKING[how]) as server, pytest.raises(InvalidConfig, match="asks for the password"):
            Capture(options(server), tmp_path, start="latest", server_id=4711).run(threading.Event())
        assert not server.heard(PASSWORD.encode())

    def test_after_a_broken_tls_handshake(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with LyingServer(breaks_tls_then(asks_for("mysql_clear_password"))) as server:
            code, told = check(server, capfd, monkeypatch)
        assert code == 2
        assert "TLS to the database failed" in told
        assert server.connections == 1, "it came again with less"
        assert not server.heard(PASSWORD.encode())

    @pytest.mark.parametrize("tls", [Tls.REQUIRED, Tls.VERIFY_CA, Tls.VERIFY_IDENTITY])
    def test_nor_a_hash_of_it_where_tls_is_required_and_not_offered(self, tls: Tls, tmp_path: Path) -> None:
        authority = make_certificates(tmp_path / "ours", "127.0.0.1").ca
        with LyingServer(ASKING["clear"]) as server, pytest.raises(InvalidConfig, match="offers no TLS"):
            Session(options(server, tls=tls, tls_ca=str(authority)))
        assert not any(server._told), "something was said to a server without TLS"

    @pytest.mark.parametrize("how", ["clear", "dialog", "caching-sha2", "switch-to-caching-sha2", "switch-to-sha256"])
    def test_unless_a_setting_says_so(self, how: str) -> None:
        """This is what shows that the server of these tests would hear it."""
        with LyingServer(ASKING[how]) as server, pytest.raises(SnowmeltError):
            Session(options(server, allow_password_to_unverified_server=True))
        assert server.heard(PASSWORD.encode())

    @pytest.mark.parametrize("how", ["clear", "caching-sha2", "switch-to-sha256"])
    def test_unless_its_certificate_is_verified(self, how: str, tmp_path: Path) -> None:
        made = make_certificates(tmp_path / "ours", "127.0.0.1")
        with LyingServer(ASKING[how], certificate=(made.cert, made.key)) as server, pytest.raises(SnowmeltError):
            Session(options(server, tls=Tls.VERIFY_IDENTITY, tls_ca=str(made.ca)))
        assert server.heard(PASSWORD.encode())

    def test_the_refusal_tells_the_remedies(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with LyingServer(ASKING["switch-to-caching-sha2"]) as server:
            code, told = check(server, capfd, monkeypatch)
        assert code == 2
        for word in ("caching_sha2_password, without TLS", "tls: verify-identity", "tls_ca", "allow_password_to_unverified_server: yes"):
            assert word in told


class TestAPluginThatWeDoNotSpeak:
    @pytest.mark.parametrize("plugin", ["parsec", "client_ed25519", "auth_gssapi_client", "\x1b[2J"])
    def test_is_named_with_a_remedy(self, plugin: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handshake, "_SPOKEN", handshake._SPOKEN - {"client_ed25519"})
        with LyingServer(asks_for(plugin)) as server:
            code, told = check(server, capfd, monkeypatch)
        assert code == 2
        assert "an authentication plugin that snowmelt does not speak: " in told
        assert ("\\u001b[2J" if plugin[0] == "\x1b" else plugin) in told
        assert "give the user caching_sha2_password" in told


class TestTextsOfTheServer:
    def test_steer_no_terminal_and_forge_no_line(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with LyingServer(says(error(FORGED, 1040))) as server:
            code, told = check(server, capfd, monkeypatch)
        assert code == 1
        assert len(told.strip().splitlines()) == 1
        assert not any(character in told for character in "\x1b\x07\x9b\u202e")
        assert r"\u001b[2J" in told

    def test_are_cut(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with LyingServer(says(error(b"y" * 500_000, 1040))) as server:
            code, told = check(server, capfd, monkeypatch)
        assert code == 1
        assert len(told) < 3_000
        assert "characters)" in told

    def test_a_version_is_a_text_too(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        with LyingServer(answers(b"\1", column(), END, b"\x09" + b"8.\x1b[2J.1x", END)) as server:
            code, told = check(server, capfd, monkeypatch)
        assert code == 1
        assert "\x1b" not in told


class TestWhatIsNoAnswer:
    @pytest.mark.parametrize(
        "script",
        [
            pytest.param(says(NOISE), id="noise"),
            pytest.param(says(b""), id="an empty greeting"),
            pytest.param(says(b"\x0a"), id="a greeting of one byte"),
            pytest.param(says(b"\x0aeight\0" + bytes(60)), id="a version without numbers"),
            pytest.param(says(b"y" * (2 << 20)), id="a greeting of 2 MiB"),
            pytest.param(greets_without_end, id="a greeting without end"),
            pytest.param(answers(b"\xfb/etc/passwd"), id="a request for a file"),
            pytest.param(answers(b"\1", column()[:9], END, END), id="a column definition that is cut"),
            pytest.param(answers(b"\1", b"", END, END), id="an empty column definition"),
            pytest.param(answers(b"\1", column(), END, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7fx", END), id="a value beyond its packet"),
            pytest.param(answers(b"\1", column(), END, b"\2\xff\xfe", END), id="a value that is no text"),
            pytest.param(answers(b"\1", column(), OK), id="no end of the columns"),
            pytest.param(answers(b""), id="an empty answer"),
            pytest.param(answers_without_end(b"\1", column(), END, then=b"\3abc"), id="rows without end"),
            pytest.param(answers_without_end(b"\xfd\xff\xff\xff", then=column()), id="columns without end"),
            pytest.param(answers_without_end(then=MORE_RESULTS), id="results without end"),
        ],
    )
    def test_is_one_line_and_no_traceback(self, script: Script, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        # What would be a gigabyte is some megabytes here: the limit is what is tried, not the machine.
        monkeypatch.setattr(handshake, "ANSWER_BYTES_MAX", 8 << 20)
        with LyingServer(script) as server:
            code, told = check(server, capfd, monkeypatch)
            with pytest.raises((Corrupt, Unavailable)):
                Session(options(server))
        assert code == 1
        assert len(told.strip().splitlines()) == 1
        assert "an unexpected error" not in told
        assert not server.heard(b"root:")

    @pytest.mark.parametrize("script", [announces_and_is_silent, says_byte_by_byte(b"\x0a" * 64)])
    def test_a_server_that_does_not_go_on_is_given_up_in_the_time_of_a_connect(self, script: Script) -> None:
        started = time.monotonic()
        with LyingServer(script) as server, pytest.raises(Unavailable):
            Session(options(server, connect_timeout_s=1.0))
        assert time.monotonic() - started < 10

    def test_nor_may_the_answer_to_a_replica_trickle(self, tmp_path: Path) -> None:
        once = RetryBudget(tries_max=1)
        started = time.monotonic()
        with (
            LyingServer(tells(honest, says_byte_by_byte(bytes(256)))) as server,
            pytest.raises(Unavailable, match=r"timed out|its time is over"),
        ):
            Capture(options(server, connect_timeout_s=1.0), tmp_path, start="latest", server_id=4711, budget=once).run(threading.Event())
        assert time.monotonic() - started < 10


HONEST: dict[str, Told] = {
    "SELECT VERSION()": (1, [[b"5.6.51-log"]]),
    "SHOW GLOBAL VARIABLES LIKE 'server\\\\_uuid'": (2, [[b"server_uuid", b"0-1-2"]]),
    "SHOW GLOBAL VARIABLES LIKE 'gtid\\\\_mode'": (2, [[b"gtid_mode", b"OFF"]]),
    "SHOW GLOBAL VARIABLES LIKE": (2, []),
    "SHOW GLOBAL VARIABLES": (2, [[b"log_bin", b"ON"], [b"expire_logs_days", b"3"], [b"log_slave_updates", b"OFF"]]),
    "SELECT CURRENT_USER()": (1, [[b"repl@%"]]),
    "SHOW BINARY LOGS": (2, [[b"binlog.000001", b"120"]]),
    "SHOW MASTER STATUS": (4, [[b"binlog.000001", b"120", b"", None]]),
    "SHOW GRANTS": (1, [[b"GRANT ALL PRIVILEGES ON *.* TO `repl`@`%`"]]),
    "SHOW SLAVE STATUS": (2, []),
    "XA RECOVER": (4, [[b"1", b"2", b"0", b"ab"]]),
    "SELECT table_schema, table_name, table_type": (3, [[b"a", b"t", b"BASE TABLE"]]),
    "SELECT table_name, table_type, engine": (5, [[b"t", b"BASE TABLE", b"MyISAM", b"utf8_bin", b""]]),
    "SELECT table_schema, table_name FROM": (2, [[b"a", b"merged"]]),
    "SELECT table_name, ordinal_position": (
        15,
        [
            [b"t", b"1", b"id", b"int", b"int(11)", None, b"10", b"0", None, None, None, b"NO", None, b"", b""],
            [b"t", b"2", b"v", b"varchar", b"varchar(9)", b"9", None, None, None, b"utf8", b"utf8_bin", b"NO", b"x", b"", b""],
            [b"t", b"3", b"d", b"decimal", b"decimal(9,2)", None, b"9", b"2", None, None, None, b"YES", None, b"", b""],
        ],
    ),
    "SELECT table_name, index_name": (5, [[b"t", b"one", b"1", b"id", None], [b"t", b"two", b"1", b"v", None]]),
    "SHOW INDEX": (13, [[b"t", b"0", b"one", *10 * [b"1"]]]),
    "SELECT DISTINCT table_name FROM information_schema.key_column_usage": (1, [[b"t"]]),
    "SHOW CREATE TABLE": (2, [[b"t", b"CREATE TABLE t (...)"]]),
}
"""What an old MySQL says to `check` of one table, and to capture, by how its statements begin; enough to get through."""


def honest(statement: str) -> Told | None:
    return next((told for begin, told in HONEST.items() if statement.startswith(begin)), None)


def _rows(change: Callable[[list[bytes | None]], Row]) -> Callable[[Told], Told]:
    def distort(told: Told) -> Told:
        rows = [change(list(row)) for row in told[1]]
        return len(rows[0]) if rows else told[0], rows

    return distort


DISTORTIONS: dict[str, Callable[[Told], Told]] = {
    "a column less": _rows(lambda row: row[:-1] or [b"1", b"2"]),
    "a column more": _rows(lambda row: [*row, b"more"]),
    "one column": _rows(lambda row: row[:1]),
    "rows that are shorter than they say": lambda told: (told[0], [row[:-1] for row in told[1]]),
    "NULL everywhere": _rows(lambda row: [None for _ in row]),
    "words everywhere": _rows(lambda row: [b"word" for _ in row]),
    "numbers everywhere": _rows(lambda row: [b"1" for _ in row]),
    "numbers without end": _rows(lambda row: [b"9" * 5_000 for _ in row]),
    "no row": lambda told: (told[0], []),
    "every row twice": lambda told: (told[0], [*told[1], *told[1]]),
}


class TestAnAnswerOfTheWrongShape:
    def test_the_honest_ones_get_through(self) -> None:
        with LyingServer(tells(honest)) as server:
            looked = preflight.of_server(MySql(options=options(server)), ["a.*"], [])
        assert [str(table) for table in looked.found] == ["a.t"]
        assert not {finding.code for finding in looked.findings if finding.code.endswith("unchecked")}

    @pytest.mark.parametrize("how", DISTORTIONS)
    def test_is_an_error_of_ours_or_harmless(self, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(catalog, "LISTINGS", 1)
        wrong: list[Told] = []

        def lie(statement: str) -> Told | None:
            told = honest(statement)
            return DISTORTIONS[how](told) if told in wrong else told

        passed = 0
        with LyingServer(tells(lie)) as server:
            for begin, told in HONEST.items():
                wrong[:] = [told]
                with suppress(SnowmeltError):
                    looked = preflight.of_server(MySql(options=options(server)), ["a.*"], [])
                    passed += 1
                    assert all(len(finding.fact) < 3_000 for finding in looked.findings), begin
        assert passed < len(HONEST) or how == "a column more"

    @pytest.mark.parametrize(
        ("begin", "told", "why"),
        [
            ("SHOW GLOBAL VARIABLES LIKE 'server", (1, [[b"server_uuid"]]), "columns: 1, not 2: SHOW GLOBAL VARIABLES LIKE %s"),
            ("SHOW GLOBAL VARIABLES", (1, [[b"log_bin"]]), "columns: 1, not 2: SHOW GLOBAL VARIABLES"),
            ("SELECT table_schema", (2, [[b"a", b"t"]]), "columns: 2, not 3: SELECT table_schema, table_name"),
            ("SELECT table_schema", (3, [[b"a", None, b"BASE TABLE"]]), "NULL where a text belongs"),
            ("SELECT table_name, ordinal", (15, [[b"t", b"first", *13 * [b"1"]]]), "a text where a number belongs"),
            ("SHOW CREATE TABLE", (2, []), "rows: 0, not 1"),
        ],
    )
    def test_is_told_in_one_line(
        self, begin: str, told: Told, why: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with LyingServer(tells(lambda statement: told if statement.startswith(begin) else honest(statement))) as server:
            code, said = check(server, capfd, monkeypatch)
        assert code == 1
        assert len(said.strip().splitlines()) == 1
        assert said.startswith(f"snowmelt: the server's answer is not what was asked for: {why}")
