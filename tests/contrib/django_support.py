"""A real Django project in a folder of its own, and the processes that use it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.postgres_server import administer, server_url

from synergon import Engine

PROJECT: Final = Path(__file__).parent / "django_project"
SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Project:
    """The project of the tests on one database."""

    folder: Path
    database: dict[str, Any]
    url: str
    """The database, as an engine takes it."""

    def run(self, *arguments: str) -> str:
        """Run Python with these arguments in the folder. Returns what it prints."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SYNERGON_")}
        ended = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=self.folder,
            env=environment | {"DJANGO_SETTINGS_MODULE": "settings", "DATABASE": json.dumps(self.database)},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{arguments} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def run_json(self, *arguments: str) -> Any:
        """What a script prints, which is JSON."""
        return json.loads(self.run(*arguments))

    def manage(self, *arguments: str) -> str:
        """Run a command of `manage.py`."""
        return self.run("manage.py", *arguments)

    @property
    def engine(self) -> Engine:
        """An engine on the database, without the code of the project."""
        return Engine(self.url)


def project_on(store: str, folder: Path) -> Project:
    """The project on a new database: `sqlite` or `postgres`. Its tables are not created yet."""
    shutil.copytree(PROJECT, folder / "project", ignore=shutil.ignore_patterns("__pycache__"))
    if store == "sqlite":
        path = folder / "project" / "shop.sqlite3"
        file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
        return Project(folder / "project", file, f"sqlite:///{path}")
    name = f"django_{uuid4().hex}"
    administer(f"CREATE DATABASE {name}")
    found = conninfo_to_dict(server_url(), dbname=name)
    database: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": found.get("user", ""),
        "PASSWORD": found.get("password", ""),
        "HOST": found.get("host", ""),
        "PORT": found.get("port", ""),
        "CONN_MAX_AGE": None,
    }
    url = f"postgresql:///{name}?host={found['host']}&user={found['user']}"
    if found.get("password"):
        url += f"&password={found['password']}"
    return Project(folder / "project", database, url + (f"&port={found['port']}" if found.get("port") else ""))


def remove(project: Project) -> None:
    """Remove the database of a project."""
    if "postgresql" in project.database["ENGINE"]:
        administer(f"DROP DATABASE {project.database['NAME']} WITH (FORCE)")


def orders(project: Project) -> dict[int, str]:
    """The state of each order of the shop."""
    select = "SELECT id, state FROM shop_order ORDER BY id"
    if "sqlite" in project.database["ENGINE"]:
        connection = sqlite3.connect(project.database["NAME"])
        try:
            return dict(connection.execute(select).fetchall())
        finally:
            connection.close()
    with psycopg.connect(make_conninfo(server_url(), dbname=project.database["NAME"])) as server:
        return dict(server.execute(select).fetchall())
