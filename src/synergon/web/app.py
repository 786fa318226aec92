"""The web app: checks every request, calls the handler of its route, and answers with JSON.

`Api` makes the routes of Starlette from the tables of routes; the dashboard adds its pages to them. `make_app` is the
whole app, to be served or mounted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from synergon.client.control import acting_as
from synergon.engine import Engine
from synergon.errors import SynergonError
from synergon.web import inputs, tables
from synergon.web.access import Access, Auth, operator_of
from synergon.web.backend import Backend
from synergon.web.json_text import encode
from synergon.web.problems import HIDDEN, Problem, problem_of
from synergon.web.redaction import Redactor
from synergon.web.routes import KEY_HEADER, PREFIX, ApiCall, Route

ANSWER_SECONDS: Final = 30.0
"""How long an answer may take."""

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of every answer. They have no CORS headers, so pages of other sites cannot read an answer."""


class Api:
    """The HTTP API of an engine."""

    def __init__(self, engine: Engine, access: Access, backend: Backend | None = None) -> None:
        self.engine = engine
        self.access = access
        self.backend: Final = Backend(engine) if backend is None else backend
        self.redactor: Final = Redactor(engine.kinds)

    def routes(self) -> list[StarletteRoute]:
        """The routes for Starlette: one for each path, in the order of the tables."""
        by_path: dict[str, dict[str, Route]] = {}
        for route in tables.ROUTES:
            by_path.setdefault(route.path, {})[route.method] = route
        return [self._starlette_route(path, by_method) for path, by_method in by_path.items()]

    def _starlette_route(self, path: str, by_method: Mapping[str, Route]) -> StarletteRoute:
        async def answer(request: Request) -> Response:
            return await self.answer(by_method["GET" if request.method == "HEAD" else request.method], request)

        return StarletteRoute(PREFIX + path, answer, methods=list(by_method))

    async def answer(self, route: Route, request: Request) -> Response:
        """The answer to a request. Every error is a problem document."""
        try:
            found = await self.perform(route, request)
            if isinstance(found, Response):
                response = found
            else:
                response = Response(encode(found), route.status, media_type=route.media_type)
        except Exception as error:  # noqa: BLE001  the caller gets an answer, and the log the traceback
            response = self.problem(error, route).response()
        return with_headers(response)

    def problem(self, error: Exception, route: Route) -> Problem:
        """The problem document for an error. Logs the details that it hides from the caller."""
        if isinstance(error, Problem):
            return error
        if not isinstance(error, SynergonError):
            self.engine.logger.error("web: %s %s failed", route.method, route.path, exc_info=error)
            return Problem(500, HIDDEN[500])
        found = problem_of(error)
        if found.detail in HIDDEN.values():
            self.engine.logger.warning("web: %s %s failed: %s", route.method, route.path, error)
        return found

    async def perform(self, route: Route, request: Request) -> Any:
        """Check a request, and return what the handler of its route returns. Raises Problem if it is not permitted."""
        inputs.check_headers(request)
        user = await self.access.permit(request, route.role)
        query = inputs.read_query(request, route.query)
        body = None
        if route.method == "POST":
            body = await inputs.read_body(request, route.body or inputs.Nothing)
        _check_key(route, request)
        call = ApiCall(
            engine=await self.backend.engine(),
            app_engine=self.engine,
            access=self.access,
            request=request,
            user=user,
            path=dict(request.path_params),
            query=query,
            body=body,
            redactor=self.redactor,
        )
        try:
            async with asyncio.timeout(None if route.is_long else ANSWER_SECONDS):
                with acting_as(operator_of(request, user)):
                    return await route.handle(call)
        except TimeoutError:
            what = "it may have taken effect; look before you repeat it" if route.is_change else "ask for less"
            raise Problem(504, f"no answer within {ANSWER_SECONDS:g} seconds; {what}") from None


def _check_key(route: Route, request: Request) -> None:
    """Raise Problem if the request has an `Idempotency-Key`, but its route takes none."""
    if not route.takes_key and KEY_HEADER in request.headers:
        raise Problem(400, "Idempotency-Key is only for requests that enqueue a task; leave it out here")


def with_headers(response: Response) -> Response:
    """The response, with the headers of every answer that it does not have itself."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _http_error(_request: Request, error: Exception) -> Response:
    """The answer to a request with an unknown path, or with a method that the path does not have."""
    assert isinstance(error, HTTPException)
    words = {404: f"there is no such path; {PREFIX}/openapi.json has all", 405: "this path has other methods"}
    problem = Problem(error.status_code, words.get(error.status_code, error.detail), headers=error.headers)
    return with_headers(problem.response())


def make_app(engine: Engine, *, auth: Auth, hosts: Iterable[str] | None = None) -> Starlette:
    """The HTTP API as an ASGI app, to be served or mounted. `hosts` are the allowed Host names; None leaves that to the
    application around it."""
    api = Api(engine, Access(auth, hosts=hosts))

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        yield
        await api.backend.close()

    app = Starlette(routes=api.routes(), exception_handlers={HTTPException: _http_error}, lifespan=lifespan)
    app.router.redirect_slashes = False
    return app
