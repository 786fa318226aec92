"""The OpenAPI 3.1 document of the HTTP API, made from the tables of routes and the types that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec

from synergon.version import VERSION
from synergon.web.access import Role
from synergon.web.documents import ProblemDocument
from synergon.web.inputs import Nothing
from synergon.web.problems import MEDIA_TYPE
from synergon.web.routes import PREFIX, ApiCall, Route

EVERYWHERE: Final = (400, 401, 403, 429, 431, 500, 503, 504)
"""The statuses of errors that every operation may answer with."""
OF_CHANGES: Final = (408, 413, 415)

DESCRIPTIONS: Final = {
    400: "The request is wrong.",
    401: "The caller is not known.",
    403: "The caller may not do this, or a page of another site asks for it.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    409: "The state of the task does not allow it, or a live task holds the key.",
    413: "The body or the answer is too large.",
    415: "The body is no JSON.",
    422: "The values do not fit.",
    429: "Too many failed logins.",
    431: "The headers are too long.",
    500: "The server failed.",
    503: "The database is unavailable.",
    504: "The answer took too long.",
}

_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_TYPES: Final[dict[str, dict[str, Any]]] = {
    "int": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    "path": {"type": "string", "minLength": 1},
    "": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
}


def document_of(routes: Iterable[Route]) -> dict[str, Any]:
    """The document for these routes."""
    listed = tuple(routes)
    schemas, components = _schemas(listed)
    paths: dict[str, dict[str, Any]] = {}
    for route in listed:
        path = _PARAMETER.sub(r"{\1}", PREFIX + route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "synergon",
            "version": VERSION,
            "description": "Watch and steer a synergon cluster, and enqueue tasks of the kinds that its code offers.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _schemas(routes: tuple[Route, ...]) -> tuple[dict[Any, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The JSON Schema of each type that the routes name, and those that they refer to."""
    types = list(
        dict.fromkeys(
            kind for route in routes for kind in (route.query, route.body, route.answer, Nothing) if kind is not None
        )
    )
    types.append(ProblemDocument)
    found, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return dict(zip(types, found, strict=True)), components


def _operation(route: Route, schemas: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[1]],
        "x-role": route.role,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas, components), *_headers(route)],
        "responses": _responses(route, schemas),
    }
    if route.method == "POST":
        content = {"application/json": {"schema": schemas[route.body or Nothing]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _TYPES[kind]}
        for name, kind in _PARAMETER.findall(route.path)
    ]


def _query_parameters(route: Route, schemas: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is Nothing:
        return []
    own = components[schemas[route.query]["$ref"].rpartition("/")[2]]
    return [
        {"name": name, "in": "query", "required": name in own.get("required", ()), "schema": _without_null(schema)}
        for name, schema in own["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter that may be left out. A query has no null."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    found = {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options} if options else dict(schema)
    if found.get("default", 0) is None:
        del found["default"]
    return found


def _headers(route: Route) -> list[dict[str, Any]]:
    if not route.takes_key:
        return []
    text = "A repeated request with this key gets the task of the first one, for 24 hours."
    schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    return [{"name": "Idempotency-Key", "in": "header", "description": text, "schema": schema}]


def _responses(route: Route, schemas: dict[Any, Any]) -> dict[str, Any]:
    content = {route.media_type: {"schema": schemas[route.answer]}}
    if route.lines_type is not None:
        content[route.lines_type] = {"schema": {"type": "string"}}
    good = {"description": "Done.", "content": content}
    problem = {MEDIA_TYPE: {"schema": schemas[ProblemDocument]}}
    unknown = (404,) if "{" in route.path else ()
    statuses = {*EVERYWHERE, *unknown, *route.problems, *(OF_CHANGES if route.method == "POST" else ())}
    bad = {str(status): {"description": DESCRIPTIONS[status], "content": problem} for status in sorted(statuses)}
    also = {} if route.other_status is None else {str(route.other_status): good}
    return {str(route.status): good, **also, **bad}


@cache
def _document() -> dict[str, Any]:
    from synergon.web.tables import ROUTES as ALL  # which has this module's route, too

    return document_of(ALL)


async def show_openapi(_call: ApiCall) -> Any:
    """This document."""
    return _document()


ROUTES: Final = (Route(method="GET", role=Role.READ, path="/openapi.json", handle=show_openapi, answer=dict[str, Any]),)
