"""The Django app. Every process that sets up Django imports the `tasks` modules of all installed apps."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules


class SynergonConfig(AppConfig):
    """Registers the tasks of the project, and creates the tables of the engine."""

    name = "synergon.contrib.django"
    label = "synergon"
    verbose_name = "synergon"

    def ready(self) -> None:
        """Import the `tasks` module of each installed app that has one. Their kinds are the only ones that run."""
        autodiscover_modules("tasks")
        post_migrate.connect(_create_tables, sender=self)


def _create_tables(using: str, **_: Any) -> None:
    """Create the tables of the engine after `manage.py migrate`, if it uses the default database of Django. A request
    could not create them in an SQLite file in which it has a transaction open."""
    from synergon.contrib.django.project_engine import engine, is_on_django_database

    if is_on_django_database(using):
        with engine:
            pass
