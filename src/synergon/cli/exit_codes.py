"""The exit codes of the command line, and which error leads to which code."""

from __future__ import annotations

from typing import Final

from synergon.errors import ConfigurationError, StoreError, SynergonError
from synergon.model.operator_actions import RESTART_EXIT_CODE

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
RESTART: Final = RESTART_EXIT_CODE
INTERRUPTED: Final = 130
"""128 + the number of SIGINT, as in shells."""

MEANINGS: Final = """\b
Exit codes:
  0    done
  1    the command failed, or problems were found
  2    an error in the command or the configuration
  3    the database cannot be used
  86   the worker was told to restart: start it again
  130  interrupted
"""


def code_of(error: SynergonError) -> int:
    """The exit code for an error."""
    if isinstance(error, ConfigurationError):
        return USAGE
    return UNAVAILABLE if isinstance(error, StoreError) else FAILED
