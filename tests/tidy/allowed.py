"""What does not meet a limit of `tests.tidy` yet, with its number of today and the reason. Only shrink it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.tidy import Allowed

KERNEL: Final = "a kernel is one loop that numba compiles, and its table of cases reads best in one piece"


def _each(why: str, today: Mapping[str, int]) -> dict[str, Allowed]:
    return {subject: Allowed(number, why) for subject, number in today.items()}


ALLOWED: Final[Mapping[str, Mapping[str, Allowed]]] = {
    "long file": {
        **_each(
            "MySQL is rearranged behind databases/contract",
            {
                "databases/mysql/log/capture.py": 905,
                "databases/mysql/log/decode.py": 1009,
                "databases/mysql/preflight.py": 680,
                "databases/mysql/read/resultset.py": 517,
            },
        ),
        **_each(
            KERNEL,
            {
                "databases/mysql/log/framing.py": 800,
                "databases/mysql/log/images.py": 861,
                "databases/mysql/log/scan.py": 868,
                "databases/mysql/log/unpack.py": 575,
                "databases/mysql/types/binary_json.py": 867,
            },
        ),
        **_each(
            "split next",
            {
                "engine/tiering/round.py": 514,
                "fluss/client.py": 594,
                "relay/retention.py": 523,
                "sinks/fluss.py": 727,
                "sinks/paimon/sink.py": 523,
                "tiering/leases.py": 534,
                "tiering/rounds.py": 611,
            },
        ),
    },
    "long function": {
        **_each(
            "MySQL is rearranged behind databases/contract",
            {
                "databases/mysql/ddl/definitions.py::_read_attributes": 83,
                "databases/mysql/log/decode.py::_walked": 97,
                "databases/mysql/log/rowplan.py::_plan_column": 85,
            },
        ),
        **_each(
            KERNEL,
            {
                "databases/mysql/log/framing.py::strip": 84,
                "databases/mysql/log/images.py::fill": 574,
                "databases/mysql/log/scan.py::walk": 305,
                "databases/mysql/read/binaryrows.py::decode": 257,
                "databases/mysql/types/binary_json.py::json_text": 91,
                "fluss/formats/arrays.py::fill_elements": 80,
                "fluss/formats/compacted.py::fill": 209,
            },
        ),
    },
    "wide constructor": {
        **_each(
            "MySQL is rearranged behind databases/contract",
            {
                "databases/mysql/handshake.py::Connection": 10,
                "databases/mysql/log/capture.py::Capture": 13,
                "databases/mysql/log/capture.py::_Log": 11,
                "databases/mysql/log/decode.py::LogReader": 12,
            },
        ),
        **_each(
            "the driver is broken up into engine/driver/boot.py and steps",
            {
                "engine/driver/chunks.py::Chunks": 9,
                "engine/log/recorder.py::LogRecorder": 14,
            },
        ),
        **_each(
            "split next",
            {
                "engine/tiering/round.py::RunningRound": 9,
                "fluss/log.py::BucketReader": 11,
            },
        ),
    },
    "shared name": {
        **_each(
            "to be renamed by its meanings next",
            {
                "Keys": 2,
                "Pipeline": 2,
                "RowForms": 2,
            },
        ),
    },
    "positional value": {
        **_each(
            "keyword-only next",
            {
                "commit/cleaning.py::CleaningView": 6,
                "demo/shop.py::_Typed": 6,
                "planning/facts.py::Reported": 9,
            },
        ),
        **_each(
            "MySQL is rearranged behind databases/contract",
            {
                "databases/mysql/ddl/alteration.py::Alteration": 13,
                "databases/mysql/ddl/changes.py::AlterColumns": 6,
                "databases/mysql/ddl/definitions.py::Definition": 22,
                "databases/mysql/log/decode.py::_Long": 7,
                "databases/mysql/log/events.py::Query": 7,
                "databases/mysql/log/rowplan.py::PlannedColumn": 10,
                "databases/mysql/log/tablemap.py::WireColumn": 8,
            },
        ),
        **_each(
            "most types are their root alone, which is given by its place",
            {
                "fluss/formats/types.py::FlussType": 7,
            },
        ),
    },
    "stop word": {
        **_each(
            "comments of before; each is rewritten with its file",
            {
                "(?:is|are) looked at": 13,
                "(?:is|are) looked for": 6,
                "behind": 195,
                "goes on|going on|go on|went on": 107,
                "he|him|himself|his": 10,
                "let(?:s|ting)? go of": 48,
                "may not be": 10,
                "of which": 42,
                "so many": 21,
                "tell(?:s|ing)? of": 10,
                "who (?:does|has|is|was|reads|writes|adds|takes|sleeps|starts)": 18,
                "whoever|nobody|somebody|someone": 166,
            },
        ),
    },
    "imported test": {
        **_each(
            "its helpers go to tests/kit next",
            {
                "tests/bench/_peer_tiering.py <- tests.integration.test_fluss_reading": 1,
                "tests/bench/_tiering_rounds.py <- tests.integration.test_fluss_reading": 1,
                "tests/integration/test_bucket.py <- tests.integration.test_capture": 1,
                "tests/integration/test_bucket.py <- tests.integration.test_relay": 1,
                "tests/integration/test_cluster.py <- tests.integration.test_run": 1,
                "tests/integration/test_discovery.py <- tests.integration.test_capture": 1,
                "tests/integration/test_failover.py <- tests.integration.test_capture": 1,
                "tests/integration/test_fluss_login.py <- tests.integration.test_fluss_sink": 1,
                "tests/integration/test_marks.py <- tests.integration.test_capture": 1,
                "tests/integration/test_relay.py <- tests.integration.test_capture": 1,
                "tests/integration/test_schema_changes.py <- tests.integration.test_capture": 1,
                "tests/integration/test_secrets_end_to_end.py <- tests.integration.test_connect": 1,
                "tests/integration/test_server_matrix.py <- tests.integration.test_ddl": 1,
                "tests/integration/test_server_matrix.py <- tests.integration.test_types": 1,
                "tests/integration/test_set_aside.py <- tests.integration.test_capture": 1,
                "tests/integration/test_statements.py <- tests.integration.test_ddl": 1,
                "tests/integration/test_tiering.py <- tests.integration.test_fluss_reading": 1,
                "tests/integration/test_tiering_killed.py <- tests.integration.test_fluss_reading": 1,
                "tests/integration/test_union_moments.py <- tests.integration.test_fluss_reading": 1,
                "tests/integration/test_union_read.py <- tests.integration.test_fluss_reading": 1,
                "tests/integration/test_verify.py <- tests.integration.test_marks": 1,
                "tests/integration/test_verify.py <- tests.integration.test_types": 1,
                "tests/kit/histories.py <- tests.unit.test_unpack": 1,
                "tests/property/test_windows.py <- tests.unit.test_unpack": 1,
                "tests/unit/test_keeping.py <- tests.unit.test_segments": 1,
                "tests/unit/test_stored_log.py <- tests.unit.test_segments": 1,
                "tests/unit/test_stored_log.py <- tests.unit.test_unpack": 1,
            },
        ),
    },
}
