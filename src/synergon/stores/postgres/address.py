"""Parses `postgresql://` URLs: separates the parameters of synergon from those of the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from synergon.errors import ConfigurationError, OptionError
from synergon.options.store_urls import shown
from synergon.stores.postgres.hosts import Hosts, dsns_of
from synergon.stores.postgres.profile import PROFILES, STANDARD, Profile
from synergon.stores.slow_statements import check_slow

SCHEMA: Final = "synergon"
POOL: Final = 8
CALL_SECONDS: Final = 30.0

# Shorter than PostgreSQL allows: the channel for wake-ups is this name with a suffix.
_SCHEMA_NAME: Final = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}")
_OURS: Final = ("schema", "pool", "timeout", "pgbouncer", "listen", "profile", "slow")
_DRIVERS: Final = (
    *("host", "port", "dbname", "database", "user", "password", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
)
_SERVERS: Final = (
    *("application_name", "options", "timezone", "default_transaction_read_only"),
    *("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "work_mem"),
    *("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout"),
)
"""Session settings that a URL may contain under their own names; other settings can be given in `options`."""
_PATH: Final = "search_path"
_SWITCH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the database, and the options with which to use it."""

    hosts: Hosts = field(compare=False)
    """The URL of each host, without synergon's own parameters."""
    location: str
    """The address as messages show it: without the password."""
    schema: str = SCHEMA
    pool: int = POOL
    """The maximum number of connections of the pool. Those for the lease, wake-ups and `ctx.transaction()` are not
    counted."""
    call_seconds: float = CALL_SECONDS
    """The maximum duration of a call in seconds, including the wait for a connection. A rollback may add a tenth."""
    is_pooled_elsewhere: bool = False
    """Whether connections go through a transaction-mode pooler, so that no session state may outlive a transaction."""
    profile: Profile = STANDARD
    """The differences between members of the PostgreSQL family (`profile`)."""
    notifies: bool = True
    """Whether an enqueue in a caller's own transaction wakes the nodes with a NOTIFY."""
    slow_seconds: float | None = None
    """Statements that take this many seconds or more are logged. None if statements are not logged."""

    @property
    def listens(self) -> bool:
        """Whether nodes LISTEN for wake-ups. This needs a connection that no pooler shares."""
        return self.notifies and not self.is_pooled_elsewhere

    @property
    def channel(self) -> str:
        """The channel on which wake-ups are sent."""
        return f"{self.schema}_wake"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL, and remove synergon's own parameters from it."""
        parts = _split(url)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
        _check_path(parameters)
        _check_names(name for name, _ in parameters)
        ours = {name: value for name, value in parameters if name in _OURS}
        theirs = [(name, value) for name, value in parameters if name not in _OURS]
        profile = _check_profile(ours.get("profile", STANDARD.name))
        return cls(
            hosts=Hosts(dsns_of(parts, theirs)),
            location=shown(f"postgresql://{parts.netloc}{parts.path}"),
            schema=_check_schema(ours.get("schema", SCHEMA)),
            pool=_check_pool(ours.get("pool", str(POOL))),
            call_seconds=_check_seconds(ours.get("timeout", str(CALL_SECONDS))),
            is_pooled_elsewhere=_check_switch("pgbouncer", ours.get("pgbouncer", "false")),
            profile=profile,
            notifies=_check_listening(profile, ours.get("listen")),
            slow_seconds=check_slow(ours.get("slow")),
        )


def _check_path(parameters: Iterable[tuple[str, str]]) -> None:
    if any(_PATH in name.lower() or (name == "options" and _PATH in value.lower()) for name, value in parameters):
        raise OptionError(
            "a postgresql:// URL has no search_path: synergon fixes its own, so that its statements call no function "
            "of others; for ctx.transaction() set it with ALTER ROLE ... SET search_path, or in the task function"
        )


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name not in _OURS and name not in _DRIVERS and name.lower() not in _SERVERS:
            raise OptionError(
                f"a postgresql:// URL has no parameter {name!r}; there are {', '.join(_OURS)}, those of the driver "
                f"({', '.join(_DRIVERS)}) and of the server ({', '.join(_SERVERS)}); "
                "other settings of the server go into options, as in ?options=-c%20geqo%3Doff"
            )


def _split(url: str) -> SplitResult:
    """Split the URL into its parts. Raises if a part contains a piece of a password that was not escaped."""
    try:
        parts = urlsplit(url)
    except ValueError:  # its text repeats what it could not read, perhaps a part of the password
        raise _not_escaped() from None
    user, _, hosts = parts.netloc.rpartition("@")
    ports = (host.rpartition("]")[2].partition(":")[2] for host in hosts.split(","))
    is_torn = "@" in user or ("@" in parts.path and not user) or bool(parts.fragment)
    if is_torn or not all(port.isdecimal() for port in ports if port):
        raise _not_escaped()
    return parts


def _not_escaped() -> ConfigurationError:
    # Without the URL in the text: what looks like a port or a path may be a part of the password.
    return ConfigurationError(
        "a postgresql:// URL looks like postgresql://user:password@host:5432/db; escape what is special in the user "
        "and the password: @ as %40, / as %2F, : as %3A, ? as %3F, # as %23, % as %25"
    )


def _check_schema(name: str) -> str:
    if not _SCHEMA_NAME.fullmatch(name):
        raise ConfigurationError(
            f"a schema's name is made of at most 48 small letters, digits and _, and does not begin with pg_, "
            f"got schema={name!r}"
        )
    return name


def _check_pool(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ConfigurationError(f"pool must be a whole number from 1 to 1000, got pool={text!r}")
    return int(text)


def _check_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise ConfigurationError(f"timeout must be a number of seconds from 0 to 3600, got timeout={text!r}")
    return seconds


def _check_switch(name: str, text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ConfigurationError(f"{name} is true or false, got {name}={text!r}")
    return _SWITCH[text.lower()]


def _check_profile(name: str) -> Profile:
    if name not in PROFILES:
        raise ConfigurationError(f"profile is one of {', '.join(PROFILES)}, got profile={name!r}")
    return PROFILES[name]


def _check_listening(profile: Profile, text: str | None) -> bool:
    listens = _check_switch("listen", text) if text is not None else profile.notifies
    if listens and not profile.notifies:
        raise ConfigurationError(f"listen={text} needs NOTIFY, which profile={profile.name} does without; leave it out")
    return listens
