"""The app of the dashboard: pages, the login, static files, and the HTTP API that the pages' scripts call.

Every page passes the checks of the API: Host name, caller, role, limits, time. Templates escape all values. A page is
sent as a whole, or, to a script that keeps it up to date, only its main part.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.routing import Route as StarletteRoute
from starlette.staticfiles import StaticFiles

from synergon.engine import Engine
from synergon.model.lifecycle import State
from synergon.version import VERSION
from synergon.web.access import Access, Auth, Role, User, first_of
from synergon.web.app import Api, with_headers
from synergon.web.credentials import Credentials
from synergon.web.dashboard import tables, text
from synergon.web.dashboard.login import Login
from synergon.web.dashboard.pages import Page
from synergon.web.dashboard.recent_statistics import RecentStatistics
from synergon.web.dashboard.sessions import Sessions
from synergon.web.problems import Problem
from synergon.web.routes import PREFIX, Route

FOLDER: Final = Path(__file__).parent
FRAGMENT_HEADER: Final = "x-fragment"
"""Sent by the script that keeps a page up to date: it needs the main part only."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # without a referrer, browsers send forms with the origin `null`
    "Vary": "X-Fragment, Cookie",
}
"""The headers of pages, beside those of every answer."""


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=text.visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "relative": text.relative,
        "exact": text.exact,
        "duration": text.duration,
        "interval": text.interval,
        "number": text.number,
        "size": text.size,
        "pretty_json": text.pretty_json,
        "one_line": text.one_line,
        "attribute_json": text.attribute_json,
        "segment": lambda value: quote(str(value), safe=""),
        "query": urlencode,
    }
    made.globals |= {"between": text.between, "plural": text.plural, "version": VERSION, "states": list(State)}
    return made


class Dashboard:
    """The pages of an engine."""

    def __init__(self, engine: Engine, auth: Auth, hosts: Iterable[str] | None) -> None:
        self.sessions: Final = Sessions(auth) if isinstance(auth, Credentials) else None
        access = Access(auth if self.sessions is None else first_of(self.sessions.find_user, auth), hosts=hosts)
        self.api: Final = Api(engine, access)
        self._login = None if self.sessions is None or not isinstance(auth, Credentials) else Login(auth, self.sessions)
        self._templates = _environment()

    def routes(self) -> list[BaseRoute]:
        """All routes: of the API, the login, the static files, and the pages."""
        found: list[BaseRoute] = [*self.api.routes()]
        found.append(Mount("/static", Files(directory=FOLDER / "static")))
        if self._login is not None:
            found.append(StarletteRoute("/login", self._answer_login, methods=["GET", "POST"]))
            found.append(StarletteRoute("/logout", self._answer_logout, methods=["POST"]))
        return [*found, *(self._starlette_route(route) for route in tables.PAGES)]

    def _starlette_route(self, route: Route) -> StarletteRoute:
        async def answer(request: Request) -> Response:
            return await self._answer(route, request)

        return StarletteRoute(route.path, answer, methods=["GET"])

    # ------------------------------------------------------------ pages

    async def _answer(self, route: Route, request: Request) -> Response:
        try:
            found: Page = await self.api.perform(route, request)
            return self._rendered(request, await self.api.access.find_user(request), found, 200)
        except Exception as error:  # noqa: BLE001  the caller gets a page, and the log the traceback
            problem = self.api.problem(error, route)
        return self._failed(request, problem, await self._reader(request))

    async def _reader(self, request: Request) -> User | None:
        """The caller, for the page of a problem. None if the caller is not known or may not read."""
        try:
            return await self.api.access.permit(request, Role.READ)
        except Problem:
            return None

    def _rendered(self, request: Request, user: User | None, page: Page, status: int) -> Response:
        is_fragment = FRAGMENT_HEADER in request.headers
        root = root_of(request)
        body = (
            self._templates.get_template(page.template)
            .render(
                page.values,
                layout="fragment.html" if is_fragment else "layout.html",
                root=root,
                api=root + PREFIX,
                here=request.scope["path"].removeprefix(root) or "/",
                menu=tables.MENU,
                title=page.title,
                refresh_seconds=page.refresh_seconds,
                user=user,
                can_operate=user is not None and user.role.allows(Role.OPERATE),
                can_admin=user is not None and user.role.allows(Role.ADMIN),
                has_login=self._login is not None,
            )
            .encode(errors="backslashreplace")
        )
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if status == 200 and is_fragment and request.headers.get("if-none-match") == tag:
            return _with_page_headers(Response(status_code=304, headers={"ETag": tag}))
        return _with_page_headers(Response(body, status, {"ETag": tag}, "text/html; charset=utf-8"))

    def _failed(self, request: Request, problem: Problem, user: User | None) -> Response:
        """The page of a problem. A caller who is not known is redirected to the login."""
        is_fragment = FRAGMENT_HEADER in request.headers
        if problem.status == 401 and self._login is not None and not is_fragment:
            return _with_page_headers(self._login.redirect(request, root_of(request)))
        page = Page("problem.html", problem.document()["title"], {"problem": problem.document()})
        response = self._rendered(request, user, page, problem.status)
        for name, value in problem.headers.items():
            if name.lower() != "www-authenticate":
                response.headers[name] = value
        return response

    async def http_error(self, request: Request, error: Exception) -> Response:
        """The answer to a request with an unknown path, or with a method that the path does not have."""
        assert isinstance(error, HTTPException)
        words = {404: "there is no such page", 405: "this page has other methods"}
        problem = Problem(error.status_code, words.get(error.status_code, error.detail), headers=error.headers)
        if request.scope["path"].removeprefix(root_of(request)).startswith(PREFIX):
            return with_headers(problem.response())
        return self._failed(request, problem, None)

    # ------------------------------------------------------------ the login

    async def _answer_login(self, request: Request) -> Response:
        assert self._login is not None
        try:
            self.api.access.check_source(request)
            found = await self._login.answer(request, root_of(request))
        except Problem as problem:
            found = Page(
                "login.html", "Sign in", {"error": problem.detail, "name": "", "next": "", "status": problem.status}
            )
        if isinstance(found, Response):
            return _with_page_headers(found)
        return self._rendered(request, None, found, found.values["status"])

    async def _answer_logout(self, request: Request) -> Response:
        assert self.sessions is not None
        try:
            self.api.access.check_source(request)
        except Problem as problem:
            return self._failed(request, problem, None)
        response = RedirectResponse(f"{root_of(request)}/login", 303)
        self.sessions.close(request, response)
        return _with_page_headers(response)


class Files(StaticFiles):
    """The static files, with the headers of every answer. Browsers ask each time whether a file has changed."""

    async def get_response(self, path: str, scope: Any) -> Response:
        """The answer with a file."""
        response = with_headers(await super().get_response(path, scope))
        response.headers["Cache-Control"] = "no-cache"
        return response


def root_of(request: Request) -> str:
    """The path that the dashboard is mounted at, without a slash at its end."""
    found: str = request.scope.get("root_path", "")
    return found.rstrip("/")


def _with_page_headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers[name] = value
    return with_headers(response)


def make_dashboard(engine: Engine, *, auth: Auth, hosts: Iterable[str] | None = None) -> Starlette:
    """The dashboard and the HTTP API as an ASGI app, to be served or mounted. `hosts` are the allowed Host names; None
    leaves that to the application around it."""
    dashboard = Dashboard(engine, auth, hosts)
    recent = RecentStatistics()

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        yield
        await recent.close()
        await dashboard.api.backend.close()

    app = Starlette(
        routes=dashboard.routes(), exception_handlers={HTTPException: dashboard.http_error}, lifespan=lifespan
    )
    app.router.redirect_slashes = False
    app.state.dashboard = dashboard
    app.state.recent_statistics = recent
    return app
