"""The settings of the Django project of the tests: `$DATABASE` is one entry of DATABASES, as JSON."""

import json
import os

import django

SECRET_KEY = "of tests"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["synergon.contrib.django", "shop"]
DATABASES = {"default": json.loads(os.environ["DATABASE"])}

if django.VERSION >= (6,):
    BACKEND = "synergon.contrib.django.backend.SynergonBackend"
    TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": []},
        "processes": {"BACKEND": BACKEND, "QUEUES": ["heavy"], "OPTIONS": {"runs_in": "process", "retry": 3}},
    }
