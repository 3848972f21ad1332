"""What a pipeline's settings hold, as the database that tests gave them."""

from __future__ import annotations

from snowmelt.databases.mysql.database import MySql
from snowmelt.engine.driver.settings import Settings
from snowmelt.errors import instance


def mysql_of(settings: Settings) -> MySql:
    return instance(settings.source, MySql, "the source is of another database")
