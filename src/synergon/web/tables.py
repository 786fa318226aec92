"""All routes of the HTTP API, in the order in which paths are compared."""

from __future__ import annotations

from typing import Final

from synergon.web import (
    bulk_routes,
    cluster_routes,
    error_routes,
    event_routes,
    flow_routes,
    kind_routes,
    openapi,
    schedule_routes,
    task_routes,
)
from synergon.web.routes import Route

ROUTES: Final[tuple[Route, ...]] = (
    *task_routes.ROUTES,
    *bulk_routes.ROUTES,
    *error_routes.ROUTES,
    *kind_routes.ROUTES,
    *schedule_routes.ROUTES,
    *flow_routes.ROUTES,
    *cluster_routes.ROUTES,
    *event_routes.ROUTES,
    *openapi.ROUTES,
)
