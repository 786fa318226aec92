"""Users and tokens from a file or the environment, as an `auth` function.

A password is stored as scrypt with a salt of its own; a token of 32 random bytes as SHA-256, which is enough for what
cannot be guessed. Both are compared in constant time. A caller that fails again and again has to wait. The file is read
again when it has changed, so a removed token is rejected from the next request on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
import secrets
import time
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.requests import HTTPConnection

from synergon.errors import ConfigurationError
from synergon.web.access import Role, User, address_of
from synergon.web.problems import Problem

TOKEN_BYTES: Final = 32
SALT_BYTES: Final = 16
SCRYPT: Final = {"n": 2**14, "r": 8, "p": 5}
"""The parameters of scrypt. A check takes about a tenth of a second, and 16 MiB of memory."""
MOST_SCRYPT: Final = 2
"""How many passwords are checked at once."""
MOST_PASSWORD_BYTES: Final = 1024
LEAST_TOKEN_LENGTH: Final = 32

ENVIRONMENT: Final = "SYNERGON_WEB_TOKENS"
"""Tokens without a file: `name:role:token`, separated by spaces or commas."""

FREE_FAILURES: Final = 3
"""How often a caller of one name and address may fail without a pause."""
FREE_FAILURES_OF_ADDRESS: Final = 30
LONGEST_PAUSE_SECONDS: Final = 60.0
FORGET_SECONDS: Final = 900.0
"""The failures of a caller are forgotten after this number of seconds without another one."""
MOST_REMEMBERED: Final = 10_000
NAME_LENGTH: Final = 100

LOGGER: Final = logging.getLogger("synergon.web")


# ---------------------------------------------------------------- passwords and tokens


def new_token() -> str:
    """A token of 32 random bytes, as text."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> str:
    """The digest of a token, as the file stores it."""
    return "sha256$" + hashlib.sha256(token.encode()).hexdigest()


def hash_password(password: str) -> str:
    """The digest of a password, as the file stores it."""
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt${salt.hex()}${_scrypt(password, salt).hex()}"


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="surrogatepass"), salt=salt, maxmem=64 * 1024 * 1024, **SCRYPT)


@dataclass(frozen=True, slots=True)
class _Password:
    salt: bytes
    digest: bytes

    def matches(self, password: str) -> bool:
        return hmac.compare_digest(_scrypt(password, self.salt), self.digest)


_NO_PASSWORD: Final = _Password(b"\0" * SALT_BYTES, b"\0" * 64)
"""The password that is compared if there is no user with the name, so that the answer takes as long as for a user that
exists."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """The known users and tokens."""

    users: Mapping[str, tuple[Role, _Password]] = field(default_factory=dict)
    tokens: tuple[tuple[User, bytes], ...] = ()
    """The user of each token, with the digest of the token."""

    def __bool__(self) -> bool:
        return bool(self.users or self.tokens)

    def by_token(self, token: str) -> User | None:
        """The user of a token. Compares it with all tokens, so that the time of the answer reveals nothing. None if it
        is not known."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        found = [user for user, known in self.tokens if hmac.compare_digest(known, digest)]
        return found[0] if found else None


def read_file(path: Path) -> Accounts:
    """The users and tokens in a file. Raises ConfigurationError if it cannot be read, or something in it is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"the credentials in {path} cannot be read: {error}") from error
    unknown = set(document) - {"users", "tokens"}
    if unknown:
        raise ConfigurationError(f"{path} has [users.NAME] and [tokens.NAME], got {min(unknown)!r}")
    users = {
        name: (_role(entry, f"user {name!r} in {path}"), _password(entry, f"user {name!r} in {path}"))
        for name, entry in _entries(document, "users", path).items()
    }
    tokens = tuple(
        (User(name, _role(entry, f"token {name!r} in {path}")), _token(entry, f"token {name!r} in {path}"))
        for name, entry in _entries(document, "tokens", path).items()
    )
    for name, (role, _) in users.items():
        User(name, role)
    return Accounts(users, tokens)


def _entries(document: Mapping[str, Any], section: str, path: Path) -> dict[str, dict[str, Any]]:
    found = document.get(section, {})
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise ConfigurationError(f"{path}: {section} are written [{section}.NAME]")
    return found


def _role(entry: Mapping[str, Any], where: str) -> Role:
    try:
        return Role(entry.get("role", ""))
    except ValueError:
        raise ConfigurationError(f"{where} needs a role: {', '.join(Role)}; got {entry.get('role')!r}") from None


def _password(entry: Mapping[str, Any], where: str) -> _Password:
    scheme, _, rest = str(entry.get("password", "")).partition("$")
    salt, _, digest = rest.partition("$")
    try:
        found = _Password(bytes.fromhex(salt), bytes.fromhex(digest))
    except ValueError:
        found = _NO_PASSWORD
    if scheme != "scrypt" or found == _NO_PASSWORD or len(found.digest) != 64 or len(entry) != 2:
        raise ConfigurationError(f"{where} needs a role and a password as `synergon credentials password` prints it")
    return found


def _token(entry: Mapping[str, Any], where: str) -> bytes:
    scheme, _, digest = str(entry.get("token", "")).partition("$")
    try:
        found = bytes.fromhex(digest)
    except ValueError:
        found = b""
    if scheme != "sha256" or len(found) != 32 or len(entry) != 2:
        raise ConfigurationError(f"{where} needs a role and a token as `synergon credentials token` prints it")
    return found


def read_environment(text: str) -> Accounts:
    """The tokens in the environment variable. Raises ConfigurationError without the tokens in its text."""
    tokens = []
    for number, entry in enumerate(text.replace(",", " ").split(), start=1):
        name, _, rest = entry.partition(":")
        role, _, token = rest.partition(":")
        if not name or role not in list(Role) or len(token) < LEAST_TOKEN_LENGTH:
            raise ConfigurationError(
                f"entry {number} of {ENVIRONMENT} is not name:role:token with a role of {', '.join(Role)} and a token "
                f"of {LEAST_TOKEN_LENGTH} characters or more; `synergon credentials token` makes one"
            )
        tokens.append((User(name, Role(role)), hashlib.sha256(token.encode()).digest()))
    return Accounts(tokens=tuple(tokens))


# ---------------------------------------------------------------- failed logins


class FailedLogins:
    """Makes callers that fail again and again wait: for one second, two, four, ... up to a minute. Failures are counted
    for each pair of address and name, and for each address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str | None], tuple[int, float]] = OrderedDict()

    def check(self, address: str, name: str) -> None:
        """Raise Problem if the caller has to wait."""
        until = max(self._failures.get(key, (0, 0.0))[1] for key in ((address, name), (address, None)))
        remaining = until - self._clock()
        if remaining > 0:
            raise Problem(
                429,
                "too many failed logins; wait, then try again",
                headers={"Retry-After": str(int(remaining) + 1)},
            )

    def note(self, address: str, name: str) -> None:
        """Count a failure."""
        for key, free in (((address, name), FREE_FAILURES), ((address, None), FREE_FAILURES_OF_ADDRESS)):
            before, until = self._failures.pop(key, (0, 0.0))
            failures = 1 if self._clock() - until > FORGET_SECONDS else before + 1
            pause = min(2.0 ** (failures - free), LONGEST_PAUSE_SECONDS) if failures >= free else 0.0
            self._failures[key] = (failures, self._clock() + pause)
        while len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def forget(self, address: str, name: str) -> None:
        """Forget the failures of a caller that has succeeded."""
        self._failures.pop((address, name), None)


# ---------------------------------------------------------------- the auth function


class Credentials:
    """The `auth` function of `synergon api`: users and tokens from a file, tokens from the environment.

    A request has `Authorization: Bearer TOKEN`, or `Authorization: Basic` with a name and a password.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        environment: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`environment` is the value of `SYNERGON_WEB_TOKENS`. Raises ConfigurationError if neither the file nor
        `environment` has a user or token."""
        self._path = None if path is None else Path(path)
        self._given = read_environment(environment or "")
        self._read: Accounts = Accounts()
        self._version: tuple[int, int, int] | None = None
        self._failed = FailedLogins(clock)
        self._turns = asyncio.Semaphore(MOST_SCRYPT)
        self._verified: OrderedDict[bytes, _Password] = OrderedDict()
        """Passwords that were right, so that not every request costs a scrypt: keyed digests, in memory only."""
        self._pepper = secrets.token_bytes(32)
        if self._path is not None:
            self._version, self._read = _version_of(self._path), read_file(self._path)
        if not self._given and not self._read:
            raise ConfigurationError(
                f"there are no credentials: {'the file has no users and no tokens' if path else 'give a file'}, or set "
                f"{ENVIRONMENT}; `synergon credentials token` makes a token"
            )

    async def __call__(self, request: HTTPConnection) -> User | None:
        """The caller that the header `Authorization` proves. Raises Problem if it has to wait."""
        header = request.headers.get("authorization")
        if header is None:
            return None
        scheme, _, value = header.partition(" ")
        address = address_of(request)
        if scheme.lower() == "bearer":
            return self.find_by_token(value.strip(), address)
        if scheme.lower() == "basic":
            name, password = _basic(value)
            return await self.find_by_password(name, password, address)
        return None

    def find_by_token(self, token: str, address: str) -> User | None:
        """The user of a token. None if it is not known. A known token never waits: it cannot be guessed."""
        self._read_again()
        user = self._given.by_token(token) or self._read.by_token(token)
        if user is None:
            self._failed.check(address, "token")
            self._failed.note(address, "token")
        return user

    async def find_by_password(self, name: str, password: str, address: str) -> User | None:
        """The user with this password. None if the name or the password is wrong. Also for a login form."""
        self._read_again()
        role, known = self._read.users.get(name, (Role.NONE, _NO_PASSWORD))
        key = hmac.digest(self._pepper, known.salt + password.encode(errors="surrogatepass"), "sha256")
        if self._verified.get(key) == known:
            return User(name, role)
        who = name[:NAME_LENGTH]  # what is remembered of it, however long it is
        self._failed.check(address, who)
        async with self._turns:
            self._failed.check(address, who)  # others of this caller may have failed meanwhile
            is_short = len(password.encode(errors="surrogatepass")) <= MOST_PASSWORD_BYTES
            if not is_short or not await asyncio.to_thread(known.matches, password):
                self._failed.note(address, who)
                return None
        self._failed.forget(address, who)
        self._verified[key] = known
        while len(self._verified) > MOST_REMEMBERED:
            self._verified.popitem(last=False)
        return User(name, role)

    def entry(self, name: str) -> tuple[Any, ...] | None:
        """The entries for this name in the file and the environment. A session compares them, and ends when they
        change. None if there are none."""
        self._read_again()
        tokens = tuple(
            (user.role, digest) for user, digest in (*self._given.tokens, *self._read.tokens) if user.name == name
        )
        found = (self._read.users.get(name), tokens)
        return None if found == (None, ()) else found

    def _read_again(self) -> None:
        """Read the file if it has changed. Until it can be read, the users and tokens in it are rejected."""
        if self._path is None:
            return
        version = _version_of(self._path)
        if version == self._version:
            return
        self._read, self._version = Accounts(), version
        try:
            self._read = read_file(self._path)
        except ConfigurationError as error:
            LOGGER.error("%s; until it is mended, the users and tokens in it are rejected", error)


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _basic(value: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return "", ""
    return name, password
