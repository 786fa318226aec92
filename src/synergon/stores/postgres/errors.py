"""Reading what PostgreSQL and the network say when something is wrong.

Four kinds: what passes if the call is made again at once (`Contention`), what may pass later, once there is a
connection again (`StoreUnavailable`), what stays because the value itself is at fault (`DataRejected`), and what stays
until somebody does something about the database (any other `StoreError`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from synergon.errors import DataRejected, SchemaError, StoreError, StoreUnavailable
from synergon.stores.contention import Contention, RowHeld
from synergon.stores.postgres.address import Address

_CONTENTION: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    # A newer release has changed the tables under a prepared statement; the driver has forgotten the old one by now.
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)

_PASSING: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,
    asyncpg.QueryCanceledError,
    asyncpg.StatementCompletionUnknownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    # The driver and the connection are out of step: for one, the server has said that it ends it, and has not yet done
    # so. What we ask for has no part in that.
    asyncpg.InternalClientError,
    OSError,  # a TimeoutError is one too
)

_UNSUPPORTED: Final = "unsupported startup parameter"
"""PgBouncer's words, in whatever mode it is."""

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
    """Our error for the driver's, which tells whether trying again may help."""
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
    except _PASSING as error:
        if _UNSUPPORTED in str(error):
            raise _wants_a_switch(error, address) from error
        raise StoreUnavailable(f"{address.location} is not available: {_words(error)}") from error
    except asyncpg.PostgresError as error:
        raise _rejection(error, address) from error
    except asyncpg.InterfaceError as error:
        if isinstance(error, _ABOUT_THE_DATA):
            raise _rejection(error, address) from error
        # The connection or the pool was closed under the call.
        raise StoreUnavailable(f"{address.location} is not available: {_LOST}") from error


def _wants_a_switch(error: BaseException, address: Address) -> StoreError:
    """A pooler will not hear of settings for a connection, today or tomorrow."""
    if address.is_pooled_elsewhere:
        advice = "leave that parameter out of the URL, and set it for the role or the database"
    else:
        advice = "a pooler such as PgBouncer stands in between: add pgbouncer=true to the URL"
    return StoreError(f"{address.location} rejects the connection: {error}; {advice}")


def _words(error: BaseException) -> str:
    match error:
        case asyncpg.AdminShutdownError():
            return f"it has ended the connection because an operator said so, or because it shuts down; {_AGAIN}"
        case asyncpg.CrashShutdownError():
            return f"one of its processes has crashed, and it starts anew; {_AGAIN}"
        case asyncpg.ConnectionDoesNotExistError(__cause__=asyncpg.OperatorInterventionError() as last_words):
            return _words(last_words)
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
            return StoreError(f"{address.location}: {error}; GRANT the role what the guide to PostgreSQL lists")
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.InvalidSchemaNameError():
            return SchemaError(
                f"the tables in schema {address.schema!r} of {address.location} are missing or too old ({error}); "
                "run `synergon migrate`"
            )
        case _ if isinstance(error, _ABOUT_THE_DATA):
            return DataRejected(f"{address.location} rejected a statement: {error}")
        case _:
            return StoreError(f"{address.location} rejected a statement: {error}")
