"""The file of a tiering service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from snowmelt.credentials import Secret
from snowmelt.engine.tiering.settings import TieringSettings
from snowmelt.errors import InvalidConfig
from snowmelt.fluss.target import Login, make_login
from snowmelt.sections.document import Section, read_file
from snowmelt.sections.values import (
    SECONDS,
    Address,
    Bootstrap,
    Name,
    Options,
    Password,
    Text,
    YesNo,
    amount,
    from_error,
    one_of,
    text_like,
    whole_number,
)
from snowmelt.tiering.leases import DURATION_MS


def read_tiering(path: Path | str) -> TieringConfig:
    """Read and check a file, without asking for anything else."""
    return read_file(Path(path), TieringConfig, "tier")


class Fluss(Section):
    """A Fluss cluster."""

    bootstrap: Bootstrap
    username: Text = ""
    password: Password = Secret()
    remote_options: Options = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Fluss:
        try:
            self.login()
        except InvalidConfig as error:
            raise from_error(error) from None
        return self

    def login(self) -> Login | None:
        return make_login(self.username, self.password)


class Lake(Section):
    """Where its tables go."""

    type: Annotated[Literal["paimon"], text_like("paimon", "paimon")]
    warehouse: Address
    same_place: Annotated[YesNo, one_of(YesNo)] = YesNo.NO


class TieringRun(Section):
    """How it is done."""

    name: Name
    rounds_at_once: Annotated[int, whole_number(1, 64)] = 2
    poll: Annotated[float, amount(SECONDS, "50ms", "1m", "500ms or 5s")] = 1.0
    lease: Annotated[float, amount(SECONDS, "10s", "24h", "10m or 1h")] = DURATION_MS / 1000
    round_time: Annotated[float, amount(SECONDS, "1s", "24h", "2m or 1h")] = 120.0


class TieringConfig(Section):
    """A tiering service as its file describes it."""

    fluss: Fluss
    lake: Lake
    tiering: TieringRun

    def to_settings(self) -> TieringSettings:
        return TieringSettings(
            name=self.tiering.name,
            bootstrap=self.fluss.bootstrap,
            login=self.fluss.login(),
            warehouse=self.lake.warehouse,
            same_place=self.lake.same_place is YesNo.YES,
            remote=self.fluss.remote_options,
            rounds_at_once=self.tiering.rounds_at_once,
            poll_s=self.tiering.poll,
            lease_ms=round(self.tiering.lease * 1000),
            round_s_max=self.tiering.round_time,
        )
