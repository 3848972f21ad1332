"""Which server a pipeline goes on with, as far as no server has to be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.settings import LogSettings, Settings, SinkSettings
from snowmelt.engine.log.handover import place_on_another
from snowmelt.errors import SourceDrift
from snowmelt.relay.retention import Relay


@pytest.mark.parametrize("failover", [True, False])
def test_before_anything_was_captured_no_other_server_is_taken(tmp_path: Path, failover: bool) -> None:
    settings = Settings(name="p", state=tmp_path, sink=SinkSettings(), source=MySql(), tables=(), log=LogSettings(failover=failover))
    assert place_on_another(settings, Relay(), None, "second", "second") is None
    with pytest.raises(SourceDrift, match="another server answers than the pipeline's first one"):
        place_on_another(settings, Relay(), None, "second", "first")
