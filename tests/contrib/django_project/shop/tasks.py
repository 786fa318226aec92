"""Tasks that need the models, wherever they run."""

import importlib
import os
import threading

import django
from asgiref.sync import sync_to_async
from django.db import connection

from shop.models import Order
from synergon import Context, Retry
from synergon.contrib.django import engine


@engine.task
def ship(order_id: int) -> str:
    """In a thread."""
    Order.objects.filter(id=order_id).update(state="shipped")
    return threading.current_thread().name


@engine.task
async def ship_async(order_id: int) -> int:
    """On the event loop, with the database in a thread. Gives its connection a name that others can find."""
    await sync_to_async(name_connection)()
    await Order.objects.filter(id=order_id).aupdate(state="shipped by a coroutine")
    return os.getpid()


def name_connection() -> None:
    """Name the connection of this thread, on PostgreSQL."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET application_name = 'of a coroutine'")


@engine.task(runs_in="process")
def ship_in_process(order_id: int) -> int:
    """In a child process, which has to set up Django by itself."""
    Order.objects.filter(id=order_id).update(state="shipped by a process")
    return os.getpid()


@engine.task(runs_in="process")
async def ship_async_in_process(order_id: int) -> int:
    """On the event loop of a child process."""
    await Order.objects.filter(id=order_id).aupdate(state="shipped by a coroutine of a process")
    return os.getpid()


@engine.task(retry=Retry(attempts=2, first=0.01))
def ship_after_lost_connection(order_id: int, ctx: Context) -> None:
    """The first attempt breaks the connection of its thread, on PostgreSQL. The second one gets a new connection."""
    if ctx.attempt == 1 and connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    Order.objects.filter(id=order_id).update(state="shipped with a new connection")


@engine.task
def open_connections(order_id: int) -> list[int]:
    """How many connections the tasks before it have left open: in this thread, and by coroutines."""
    in_thread = int(connection.connection is not None)
    Order.objects.filter(id=order_id).update(state="seen")
    if connection.vendor != "postgresql":
        return [in_thread, 0]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'of a coroutine'")
        return [in_thread, cursor.fetchone()[0]]


if django.VERSION >= (6,):
    importlib.import_module("shop.background")
