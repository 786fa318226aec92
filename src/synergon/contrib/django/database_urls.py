"""The URL of a database in Django's settings, as the engine takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured

POSTGRESQL: Final = "postgresql"
SQLITE: Final = "sqlite"

_PASSED_ON: Final = (
    *("service", "passfile", "target_session_attrs", "krbsrvname", "gsslib"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation"),
)
"""The OPTIONS that say how to reach a PostgreSQL server. The others are about the sessions of Django."""


def database_url(database: Mapping[str, Any]) -> str:
    """The URL of an entry of DATABASES. Raises ImproperlyConfigured if the engine cannot use that database."""
    backend = str(database.get("ENGINE", ""))
    if backend.endswith(("postgresql", "postgis")):
        return _postgresql_url(database)
    if backend.endswith(("sqlite3", "spatialite")):
        return _sqlite_url(str(database["NAME"]))
    raise ImproperlyConfigured(
        f"synergon cannot use the default database ({backend or 'none'}): it needs PostgreSQL or SQLite; give it "
        'one of its own, as in SYNERGON = {"url": "sqlite:///tasks.db"}'
    )


def _sqlite_url(name: str) -> str:
    if name.startswith((":memory:", "file:")):
        raise ImproperlyConfigured(
            f"synergon cannot use the default database {name!r}, which is no plain file; give it one of its own, as in "
            'SYNERGON = {"url": "sqlite:///tasks.db"}'
        )
    return f"sqlite:///{quote(name)}"


def _postgresql_url(database: Mapping[str, Any]) -> str:
    given = database.get("OPTIONS", {})
    query = [(name, str(given[name])) for name in _PASSED_ON if name in given]
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    netloc = ""
    if host.startswith("/"):  # the folder of a socket
        query += [("host", host), *([("port", port)] if port else [])]
    else:
        netloc = ",".join(_addresses(host.split(","), port.split(",")))
    user = quote(str(database.get("USER") or ""), safe="")
    password = quote(str(database.get("PASSWORD") or ""), safe="")
    if user:
        netloc = f"{user}{f':{password}' if password else ''}@{netloc}"
    url = f"postgresql://{netloc}/{quote(str(database.get('NAME') or ''), safe='')}"
    return f"{url}?{urlencode(query)}" if query else url


def _addresses(hosts: Iterable[str], ports: list[str]) -> Iterator[str]:
    for index, host in enumerate(hosts):
        port = ports[index] if index < len(ports) else ports[-1]
        name = f"[{host}]" if ":" in host else host
        yield f"{name}:{port}" if port else name
