"""A server of the dashboard in this process, and a Chromium that looks at it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, async_playwright
from tests.support import PATIENCE_SECONDS

from synergon.web import server
from synergon.web.credentials import Credentials, hash_password

PASSWORD: Final = "correct horse battery"
ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """The program. Without it the test is skipped, or fails where everything must be installed."""
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        words = "these tests need a Chromium: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    return found


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A Chromium with an empty profile."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


def credentials(folder: Path) -> Credentials:
    """A file with a user for each role; all have one password."""
    digest = hash_password(PASSWORD)
    path = folder / "credentials.toml"
    path.write_text(
        "".join(f'[users.{role}]\nrole = "{role}"\npassword = "{digest}"\n' for role in ("read", "operate", "admin"))
    )
    return Credentials(path)


@asynccontextmanager
async def served(app: Any, auth: Any, port: int = 0) -> AsyncIterator[str]:
    """The address of a server of the app, which runs in this event loop."""
    planned = server.Plan(host="127.0.0.1", port=port, auth=auth, hosts=("127.0.0.1",))
    running = server.Server(server.config_of(app, planned))
    started = asyncio.Event()
    running.on_start = started.set
    with server.bind(planned) as listening:
        task = asyncio.ensure_future(running.serve(sockets=[listening]))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait([task, asyncio.ensure_future(started.wait())], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield replace(planned, port=listening.getsockname()[1]).url
        finally:
            running.should_exit = True
            await task
