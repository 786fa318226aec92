"""Translates errors of PostgreSQL and the network.

The results are `Contention` (repeat the call at once), `RowHeld` (a row stays locked), `StoreUnavailable` (repeat the
call later, on a new connection), `DataRejected` (the value is at fault), and other `StoreError`s (the database or its
URL must be changed first).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from synergon.errors import DataRejected, PermissionDenied, SchemaError, StoreError, StoreUnavailable
from synergon.stores.contention import Contention, RowHeld
from synergon.stores.postgres.address import Address

_CONTENTION: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    # A newer release has changed the tables of a prepared statement. The driver has discarded the old statement.
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)

_TRANSIENT: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.StatementCompletionUnknownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # The driver has lost track of the protocol, for instance because the server is closing the connection. The
    # statement is not the cause.
    asyncpg.InternalClientError,
    OSError,  # a TimeoutError is one too
)

_UNSUPPORTED: Final = "unsupported startup parameter"
"""A part of PgBouncer's error text, in every mode of pooling."""

_AGAIN: Final = "make the call again, on a new connection; whether this one took effect is not known"
_LOST: Final = f"the connection was lost in the middle of a call; {_AGAIN}"

_ABOUT_THE_DATA: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,  # too long for an index
    ValueError,  # an argument that the driver cannot send
)


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Translate the driver's errors into synergon's, which say whether another attempt may succeed."""
    try:
        yield
    except _CONTENTION as error:
        raise Contention(f"{address.location}: {error}") from error
    except asyncpg.LockNotAvailableError as error:
        raise RowHeld(f"{address.location}: {error}") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise StoreUnavailable(
            f"{address.location} is read-only ({error}); connect to the primary, for instance with several hosts and "
            "?target_session_attrs=read-write"
        ) from error
    except _TRANSIENT as error:
        if _UNSUPPORTED in str(error):
            raise _pooler_error(error, address) from error
        raise StoreUnavailable(f"{address.location} is not available: {_message(error)}") from error
    except asyncpg.PostgresError as error:
        raise _rejection(error, address) from error
    except asyncpg.InterfaceError as error:
        if isinstance(error, _ABOUT_THE_DATA):
            raise _rejection(error, address) from error
        # The connection or the pool was closed during the call.
        raise StoreUnavailable(f"{address.location} is not available: {_LOST}") from error


def _pooler_error(error: BaseException, address: Address) -> StoreError:
    """The error for a pooler that rejects settings of a connection: the URL must be changed."""
    if address.is_pooled_elsewhere:
        advice = "leave that parameter out of the URL, and set it for the role or the database"
    else:
        advice = "a pooler such as PgBouncer stands in between: add pgbouncer=true to the URL"
    return StoreError(f"{address.location} rejects the connection: {error}; {advice}")


def _message(error: BaseException) -> str:
    match error:
        case asyncpg.AdminShutdownError():
            return f"it has ended the connection because an operator said so, or because it shuts down; {_AGAIN}"
        case asyncpg.CrashShutdownError():
            return f"one of its processes has crashed, and it starts anew; {_AGAIN}"
        case asyncpg.ConnectionDoesNotExistError(__cause__=asyncpg.OperatorInterventionError() as last_words):
            return _message(last_words)
        case asyncpg.ConnectionDoesNotExistError() | asyncpg.InternalClientError() | ConnectionResetError():
            return _LOST
        case TimeoutError() if not str(error):
            return "it did not answer in time"
        case _:
            return str(error) or type(error).__name__


def _rejection(error: Exception, address: Address) -> StoreError:
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreError(f"{address.location} rejects the role: {error}; check the user and password in the URL")
        case asyncpg.InvalidCatalogNameError():
            return StoreError(f"{address.location}: {error}; create it with CREATE DATABASE, or name another one")
        case asyncpg.InsufficientPrivilegeError():
            return PermissionDenied(
                f"{address.location}: {error}; GRANT the role what it needs (`synergon migrate --print-grants`)"
            )
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.InvalidSchemaNameError():
            return SchemaError(
                f"the tables in schema {address.schema!r} of {address.location} are missing or too old ({error}); "
                "run `synergon migrate`"
            )
        case _ if isinstance(error, _ABOUT_THE_DATA):
            return DataRejected(f"{address.location} rejected a statement: {error}")
        case _:
            return StoreError(f"{address.location} rejected a statement: {error}")
