"""Writes pictures of all pages, in both themes, wide and narrow, to build/screenshots: `make screenshots`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.web.browser import open_browser, served
from tests.web.sample import add_history, open_shop, write_past

from synergon.web.access import Role, User, everybody
from synergon.web.credentials import Credentials, hash_token
from synergon.web.dashboard.app import make_dashboard

FOLDER: Final = Path("build/screenshots")
NEUTRAL: Final = """(replacements) => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode())
        for (const [from, to] of replacements) node.data = node.data.replaceAll(from, to);
}"""
"""A script that replaces what is particular to the machine."""
SIZES: Final = {"wide": (1360, 860), "narrow": (390, 844)}


async def main(only: list[str]) -> None:
    """Write the pictures, or only those of some pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with open_shop(f"sqlite:///{folder}/tasks.db", many=20) as (engine, ids):
            await write_past(engine)
            await add_history(engine)
            pages = {
                "overview": "/",
                "tasks": "/tasks",
                "tasks-failed": "/tasks?state=failed",
                "tasks-errors": "/tasks?view=errors",
                "tasks-filters": "/tasks?tag=order&queue=mail&node=shop",
                "tasks-none": "/tasks?kind=nothing",
                "task-failed": f"/tasks/{ids['charge']}",
                "task-parent": f"/tasks/{ids['parent']}",
                "task-waiting": f"/tasks/{ids['waiting']}",
                "task-paused": f"/tasks/{ids['paused']}",
                "task-running": f"/tasks/{ids['import']}",
                "task-hostile": f"/tasks/{ids['note']}",
                "flows": "/flows",
                "flow": f"/flows/{ids['flow']}",
                "schedules": "/schedules",
                "queues": "/queues",
                "nodes": "/nodes",
                "providers": "/providers",
                "audit": "/audit",
                "missing": "/tasks/999999",
            }
            auth = everybody(User("ada", Role.ADMIN))
            tokens = Path(folder) / "credentials.toml"
            tokens.write_text(f'[tokens.a]\nrole = "read"\ntoken = "{hash_token("x" * 40)}"\n')
            with_login = Credentials(tokens)
            async with (
                served(make_dashboard(engine, auth=auth), auth) as url,
                served(make_dashboard(engine, auth=with_login), with_login) as locked,
                open_browser() as browser,
            ):
                for size, (width, height) in SIZES.items():
                    for theme in ("light", "dark"):
                        page = await browser.new_page(
                            viewport={"width": width, "height": height},
                            color_scheme="dark" if theme == "dark" else "light",
                        )
                        for name, address in {
                            **{name: url + path for name, path in pages.items()},
                            "login": f"{locked}/login",
                        }.items():
                            if only and name not in only:
                                continue
                            await page.goto(address, wait_until="load")
                            await page.evaluate(NEUTRAL, [[folder, "/srv/shop"], [str(Path.cwd()), "/srv/shop"]])
                            await page.screenshot(path=FOLDER / f"{name}-{size}-{theme}.png")
                        await page.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
