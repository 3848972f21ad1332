"""Credentials by reference.

A secret is written in a configuration as `${NAME}` (environment) or `file:/path` (first line of a file). It is looked up
when it is used, is never printed, and never travels: what is pickled or stored is the reference.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from snowmelt.errors import InvalidConfig

_ENVIRONMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Secret:
    """A reference to a secret, or the empty secret."""

    reference: str = ""

    def __post_init__(self) -> None:
        if self.reference and not self.reference.startswith("file:") and not _ENVIRONMENT.fullmatch(self.reference):
            # The text itself may be the secret, so the error doesn't repeat it.
            raise InvalidConfig(
                "a secret must be given by reference", hint="write ${NAME} for an environment variable or file:/path for a file"
            )

    def reveal(self) -> str:
        """The secret itself. Hand it straight to whoever needs it; don't keep it."""
        if not self.reference:
            return ""
        match = _ENVIRONMENT.fullmatch(self.reference)
        if match:
            value = os.environ.get(match[1])
            if value is None:
                raise InvalidConfig(f"environment variable {match[1]} is not set", hint="it should hold the password")
            return value
        path = Path(self.reference.removeprefix("file:"))
        try:
            return path.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
        except OSError as error:
            raise InvalidConfig(f"the secret's file {path} can't be read", detail=error.strerror or "") from None
        except UnicodeDecodeError:
            raise InvalidConfig(f"the secret's file {path} can't be read", detail="it is not UTF-8") from None

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"
