"""Which server a pipeline goes on with, as far as no server has to be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.databases.mysql.connect import Server
from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.settings import Settings
from snowmelt.engine.log.handover import place_on_another
from snowmelt.errors import SourceDrift
from snowmelt.relay.retention import Relay


@pytest.mark.parametrize("failover", [True, False])
def test_before_anything_was_captured_no_other_server_is_taken(tmp_path: Path, failover: bool) -> None:
    settings = Settings(name="p", state=tmp_path, warehouse="", source=MySql(), tables=(), failover=failover)
    server = Server("mariadb", (10, 11, 0), "second")
    assert place_on_another(settings, Relay(), None, server, "second") is None
    with pytest.raises(SourceDrift, match="another server answers than the one that the pipeline was begun with"):
        place_on_another(settings, Relay(), None, server, "first")
