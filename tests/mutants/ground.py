"""The ground floor: reading MySQL and MariaDB. Faults that servers brought to light."""

from __future__ import annotations

from typing import Final

from tests.mutants import Lane, Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        id="G1",
        seed="ground",
        statement="events of which MariaDB 11.4 does not tell the end are refused",
        file="databases/mysql/log/framing.py",
        old="    if next_position != 0 and end % _WRAP != next_position:\n",
        new="    if end % _WRAP != next_position:\n",
        tests=("unit/test_framing.py::test_places_inside_a_transaction_are_counted_where_they_are_not_told",),
    ),
    Mutant(
        id="G2",
        seed="ground",
        statement="a VECTOR shifts the charsets of the columns beside it",
        file="databases/mysql/log/tablemap.py",
        old="Wire.VARCHAR_COMPRESSED, Wire.VECTOR,\n    }\n",
        new="Wire.VARCHAR_COMPRESSED,\n    }\n",
        tests=("unit/test_tablemap.py::TestVectors::test_columns_beside_a_vector_keep_their_own_charset",),
    ),
    Mutant(
        id="G3",
        seed="ground",
        statement="a server that asks for the password in clear gets it",
        file="databases/mysql/handshake.py",
        old='                "mysql_clear_password": _RefusedPlugin,\n',
        new="",
        tests=("integration/test_lying_servers.py::TestThePasswordIsNotGivenAway::test_to_a_server_that_asks_for_it_without_tls",),
        lane=Lane.SHELL,
    ),
    Mutant(
        id="G4",
        seed="ground",
        statement="what a transaction rolled back to a savepoint comes all the same",
        file="databases/mysql/log/savepoints.py",
        old="        if first < events:\n",
        new="        if first > events:\n",
        tests=("unit/test_savepoints.py::test_what_lies_behind_a_savepoint_is_undone_and_what_lies_before_it_is_not",),
    ),
)
