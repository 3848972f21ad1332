"""The section `source` of pipeline.yaml for MySQL and MariaDB."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from snowmelt.credentials import Secret
from snowmelt.databases.contract.section import SourceSection
from snowmelt.databases.mysql.connect import MySqlOptions, Tls
from snowmelt.databases.mysql.database import MySql
from snowmelt.databases.mysql.preflight import Cascades
from snowmelt.databases.mysql.types.columns import TimeAs, TypeOptions, ZeroDates
from snowmelt.errors import InvalidConfig
from snowmelt.sections.values import SECONDS, File, Password, Pattern, Patterns, Text, YesNo, amount, from_error, one_of, whole_number


class Failover(StrEnum):
    """What to do when another server answers."""

    REFUSE = "refuse"
    GTID = "gtid"


class MySqlSource(SourceSection):
    """A MySQL or MariaDB server, and which of its tables."""

    type: Literal["mysql"]
    host: Text | None = None
    port: Annotated[int, whole_number(1, 65535)] = 3306
    socket: File | None = None
    username: Text
    password: Password = Secret()
    tables: Patterns
    exclude: Annotated[tuple[Pattern, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = ()
    tls: Annotated[Tls, one_of(Tls)] = Tls.PREFERRED
    tls_ca: File | None = None
    tls_cert: File | None = None
    tls_key: File | None = None
    allow_password_to_unverified_server: Annotated[YesNo, one_of(YesNo)] = YesNo.NO
    connect_timeout: Annotated[float, amount(SECONDS, "1s", "10m", "10s or 1m")] = 10.0
    read_time_max: Annotated[float, amount(SECONDS, "10s", "168h", "10m or 1h")] = MySqlOptions().read_time_max_s
    server_id: Annotated[int, whole_number(1, 4_294_967_295)] | None = None
    failover: Annotated[Failover, one_of(Failover)] = Failover.REFUSE
    cascades: Annotated[Cascades, one_of(Cascades)] = Cascades.REFUSE
    zero_dates: Annotated[ZeroDates, one_of(ZeroDates)] = ZeroDates.NULL
    time_as: Annotated[TimeAs, one_of(TimeAs)] = TimeAs.MICROS

    @model_validator(mode="after")
    def _fits(self) -> MySqlSource:
        if (self.host is None) == (self.socket is None):
            raise PydanticCustomError("config", "{text}", {"text": "needs either host or socket"})
        try:
            self.database()
        except InvalidConfig as error:
            raise from_error(error) from None
        return self

    @property
    def fails_over(self) -> bool:
        return self.failover is Failover.GTID

    def database(self) -> MySql:
        return MySql(
            options=MySqlOptions(
                host=self.host or "127.0.0.1",
                port=self.port,
                socket=self.socket,
                username=self.username,
                password=self.password,
                tls=self.tls,
                tls_ca=self.tls_ca,
                tls_cert=self.tls_cert,
                tls_key=self.tls_key,
                allow_password_to_unverified_server=self.allow_password_to_unverified_server is YesNo.YES,
                connect_timeout_s=self.connect_timeout,
                read_time_max_s=self.read_time_max,
            ),
            types=TypeOptions(zero_dates=self.zero_dates, time_as=self.time_as),
            cascades=self.cascades,
            server_id=self.server_id,
        )
