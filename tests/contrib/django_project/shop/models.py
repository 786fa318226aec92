"""What the shop stores."""

from typing import Any

from django.db import models


class Order(models.Model):
    """An order, and what became of it."""

    state: Any = models.CharField(max_length=200, default="new")
