"""Credentials by reference.

A secret is written in a configuration as `${NAME}` (environment) or `file:/path` (first line of a regular file). It is looked up
when it is used, is never printed, and never travels: what is pickled or stored is the reference.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from snowmelt.errors import InvalidConfig

FILE_BYTES_MAX: Final = 64 << 10

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
        """The secret itself. Hand it straight to the code that needs it; don't keep it."""
        if not self.reference:
            return ""
        match = _ENVIRONMENT.fullmatch(self.reference)
        if match:
            value = os.environ.get(match[1])
            if value is None:
                raise InvalidConfig(f"environment variable {match[1]} is not set", hint="it should hold the password")
            if any("\ud800" <= character <= "\udfff" for character in value):
                # Python's own error would tell the byte and where it is.
                raise InvalidConfig(f"environment variable {match[1]} can't be read", detail="it is not UTF-8")
            return value
        path = Path(self.reference.removeprefix("file:"))
        try:
            # Editors of some systems mark a file as UTF-8 by a first character that is not seen.
            return _read(path).decode("utf-8-sig").split("\n", 1)[0].rstrip("\r")
        except OSError as error:
            raise InvalidConfig(f"the secret's file {path} can't be read", detail=error.strerror or "") from None
        except UnicodeDecodeError:
            raise InvalidConfig(f"the secret's file {path} can't be read", detail="it is not UTF-8") from None
        except ValueError:
            raise InvalidConfig(f"the secret's file {path} can't be read", detail="no file has such a name") from None

    def __repr__(self) -> str:
        return f"Secret({self.reference!r})"


def _read(path: Path) -> bytes:
    """A regular file alone: a pipe may never be written to, and a device may have no end. Looked at after it is opened, without waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidConfig(f"the secret's file {path} can't be read", detail="it is no regular file")
        # Its size may be told wrongly, as that of files in /proc is.
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise InvalidConfig(f"the secret's file {path} can't be read", detail=f"it is larger than {FILE_BYTES_MAX >> 10} KiB")
    return content
