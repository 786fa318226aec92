"""`synergon api` and `synergon dashboard`: serve the HTTP API or the dashboard of an app. `synergon credentials`: makes
tokens and passwords for them."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import typer

from synergon.cli import logs
from synergon.cli.database import JsonOption, Target, UrlOption, find_target, require_schema, require_shared_store
from synergon.cli.output import print_line, write_json
from synergon.errors import ConfigurationError, OptionError
from synergon.options.store_urls import shown

ROLES: Final = ("read", "operate", "admin")

AppArgument = Annotated[
    str | None, typer.Argument(metavar="[MODULE:ENGINE]", show_default=False, help="The app, like shop.tasks:engine.")
]
ListenOption = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen. Without a host: this machine only.")
]
CredentialsOption = Annotated[
    str | None,
    typer.Option("--credentials", metavar="FILE", help="Users and tokens. Default: $SYNERGON_WEB_CREDENTIALS."),
]
GrantOption = Annotated[
    str, typer.Option("--grant", metavar="ROLE", help="The role of callers without credentials, on this machine.")
]
HostOption = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="A Host name that callers use; repeatable.")
]
ProxyOption = Annotated[
    list[str] | None,
    typer.Option("--proxy", metavar="ADDRESS", help="A proxy whose X-Forwarded-For is trusted; repeatable."),
]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="The name for the audit.")]
RoleOption = Annotated[str, typer.Option("--role", metavar="ROLE", help="read, operate or admin.")]

LEAST_PASSWORD: Final = 12

credentials_commands: Final = typer.Typer(no_args_is_help=True, help="Make tokens and passwords for the HTTP API.")


def api(
    app: AppArgument = None,
    listen: ListenOption = ":8080",
    credentials: CredentialsOption = None,
    grant: GrantOption = "read",
    host: HostOption = None,
    proxy: ProxyOption = None,
    url: UrlOption = None,
    log_level: logs.LevelOption = logs.Level.INFO,
    log_format: logs.FormatOption = logs.Format.TEXT,
) -> None:
    """Serve the HTTP API of an app, under /api/v1.

    Without credentials it listens on this machine only, and callers may read; --grant operate lets them change. Of
    kinds in the app, arguments and results are shown, and callers may enqueue those with api=True. Runs until SIGINT or
    SIGTERM.
    """
    options = _Options(listen, credentials, grant, tuple(host or ()), tuple(proxy or ()), log_level, log_format)
    _serve("api", find_target(app, url), options)


def dashboard(
    app: AppArgument = None,
    listen: ListenOption = ":8080",
    credentials: CredentialsOption = None,
    grant: GrantOption = "read",
    host: HostOption = None,
    proxy: ProxyOption = None,
    url: UrlOption = None,
    log_level: logs.LevelOption = logs.Level.INFO,
    log_format: logs.FormatOption = logs.Format.TEXT,
) -> None:
    """Serve the dashboard of an app, and its HTTP API under /api/v1.

    Without credentials it listens on this machine only, and viewers may read; --grant operate lets them change. With
    credentials it has a login. Of kinds in the app, arguments and results are shown. Runs until SIGINT or SIGTERM.
    """
    options = _Options(listen, credentials, grant, tuple(host or ()), tuple(proxy or ()), log_level, log_format)
    _serve("dashboard", find_target(app, url), options)


class _Options(NamedTuple):
    listen: str
    credentials: str | None
    grant: str
    hosts: tuple[str, ...]
    proxies: tuple[str, ...]
    log_level: logs.Level
    log_format: logs.Format


def _serve(what: Literal["api", "dashboard"], target: Target, given: _Options) -> None:
    """Serve the HTTP API or the dashboard until SIGINT or SIGTERM."""
    server = _server()
    require_shared_store(target.engine, "the HTTP API" if what == "api" else "the dashboard")
    planned = server.plan(
        given.listen,
        credentials=_credentials(given.credentials),
        grant=_role(given.grant, "--grant"),
        hosts=server.hosts_of(given.hosts),
        proxies=server.hosts_of(given.proxies),
    )
    make, path = (server.app_of, "/api/v1") if what == "api" else (server.dashboard_of, "/")
    logs.configure(given.log_level, target.engine.settings.name, given.log_format)

    async def run() -> None:
        await require_schema(target)
        await server.serve(
            make(target.engine, planned),
            planned,
            lambda url: print_line(f"listening on {url}{path}, for {shown(target.engine.settings.url)}"),
        )

    asyncio.run(run())


def _server() -> Any:
    """The module of the server, which needs packages that may not be installed."""
    try:
        from synergon.web import server
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "h11", "jinja2"):
            raise
        raise ConfigurationError(f"the web server needs {error.name}; pip install 'synergon[web]'") from error
    return server


def _credentials(path: str | None) -> Any:
    """The users and tokens. None if neither a file nor tokens are given."""
    from synergon.web.credentials import ENVIRONMENT, Credentials

    path = path or os.environ.get("SYNERGON_WEB_CREDENTIALS")
    tokens = os.environ.get(ENVIRONMENT)
    return Credentials(path, tokens) if path or tokens else None


def _role(word: str, option: str) -> Any:
    from synergon.web.access import Role

    if word not in ROLES:
        raise OptionError(f"{option} is one of {', '.join(ROLES)}, got {word!r}")
    return Role(word)


@credentials_commands.command()
def token(name: NameOption, role: RoleOption = "read", as_json: JsonOption = False) -> None:
    """Make a token, and print it with its entry for the file of credentials.

    The file has only a digest of the token: keep the token itself, it is not shown again.
    """
    _server()
    from synergon.web.access import User
    from synergon.web.credentials import hash_token, new_token

    user = User(name, _role(role, "--role"))
    made = new_token()
    if as_json:
        write_json({"name": user.name, "role": user.role, "token": made, "digest": hash_token(made)})
        return
    print_line(f"token: {made}")
    print_line()
    _print_entry("tokens", user.name, user.role, "token", hash_token(made))


@credentials_commands.command()
def password(name: NameOption, role: RoleOption = "read") -> None:
    """Read a password, and print its entry for the file of credentials.

    Reads it from the terminal without showing it, or one line from stdin.
    """
    _server()
    from synergon.web.access import User
    from synergon.web.credentials import hash_password

    user = User(name, _role(role, "--role"))
    given = getpass.getpass("password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if len(given) < LEAST_PASSWORD:
        raise OptionError(f"a password has {LEAST_PASSWORD} characters or more")
    _print_entry("users", user.name, user.role, "password", hash_password(given))


def _print_entry(section: str, name: str, role: str, what: str, digest: str) -> None:
    """Print an entry of a file of credentials. A JSON string is also a TOML string."""
    print_line(f"[{section}.{msgspec.json.encode(name).decode()}]")
    print_line(f'role = "{role}"')
    print_line(f'{what} = "{digest}"')
