"""The ids of tasks that callers' own transactions have got, in a small file beside the database.

A caller that rolls back undoes the sequence in the database, too, and the ids that it was told would be assigned to
other tasks. This file remembers them: every process reads and writes it while it holds the write lock of the database.
It is not synced to the disk, so a power failure may lose the ids of transactions that were rolled back just before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from synergon.errors import StoreUnavailable

DIGITS: Final = 19
"""As many as the greatest id has."""


class IssuedIds:
    """The greatest id that a caller's transaction has got."""

    def __init__(self, database: Path) -> None:
        self._database = database.resolve()  # a link and its target share the file, as they share that of the log
        self._path = self._database.with_name(f"{self._database.name}-ids")

    def last(self) -> int:
        """The greatest id; 0 if no caller's transaction has got one."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._trouble(error) from error
        try:
            number = os.read(descriptor, DIGITS)
        except OSError as error:
            raise self._trouble(error) from error
        finally:
            os.close(descriptor)
        return int(number) if number.isdigit() else 0  # a power failure may leave zero bytes

    def note(self, last_id: int) -> None:
        """Remember that ids up to this one were assigned."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                with suppress(PermissionError):  # another user's file: that one has set its mode
                    os.fchmod(descriptor, self._database.stat().st_mode & 0o777)  # as SQLite does for its files
                os.pwrite(
                    descriptor, b"%0*d\n" % (DIGITS, last_id), 0
                )  # in place: a process that dies here leaves a number
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._trouble(error) from error

    def _trouble(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._path}, which keeps ids from being assigned twice, cannot be used ({error}); give this process the "
            "right to read and write it"
        )
