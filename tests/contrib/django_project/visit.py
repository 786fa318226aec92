"""Creates the tables, and visits the shop as a web server would: posts to the paths in the arguments, and prints the
answers as JSON."""

import json
import sys
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402  after the set-up
from django.test import Client  # noqa: E402

call_command("migrate", run_syncdb=True, verbosity=0)
client: Any = Client()
print(json.dumps([client.post(path).json() for path in sys.argv[1:]]))
