"""All pages of the dashboard, in the order in which paths are compared, and the menu."""

from __future__ import annotations

from typing import Final

from synergon.web.dashboard import (
    cluster_pages,
    flow_pages,
    overview_page,
    queue_page,
    schedule_pages,
    task_list_page,
    task_page,
)
from synergon.web.routes import Route

PAGES: Final[tuple[Route, ...]] = (
    *overview_page.PAGES,
    *task_list_page.PAGES,
    *task_page.PAGES,
    *flow_pages.PAGES,
    *schedule_pages.PAGES,
    *queue_page.PAGES,
    *cluster_pages.PAGES,
)

MENU: Final = (
    ("/", "Overview"),
    ("/tasks", "Tasks"),
    ("/flows", "Flows"),
    ("/schedules", "Schedules"),
    ("/queues", "Queues and kinds"),
    ("/nodes", "Nodes"),
    ("/providers", "Providers and limits"),
    ("/audit", "Audit"),
)
"""The path and the name of each page in the menu."""
