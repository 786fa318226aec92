"""The project as an app of the command line: `synergon tasks list --app synergon.contrib.django.project`.

Importing it sets up Django, which imports the tasks of all installed apps. $DJANGO_SETTINGS_MODULE names the settings.
"""

from __future__ import annotations

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

from synergon.contrib.django.project_engine import engine

__all__ = ["engine"]

if not apps.ready:
    django.setup()
if not apps.is_installed("synergon.contrib.django"):
    raise ImproperlyConfigured('add "synergon.contrib.django" to INSTALLED_APPS; the app finds the tasks of the others')
