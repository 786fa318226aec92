"""Views that take orders and enqueue."""

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse

from shop import tasks
from shop.models import Order
from synergon.contrib.django import on_commit


def order(request: HttpRequest, how: str) -> JsonResponse:
    """Store an order, and the task of the shop with this name in the same transaction."""
    with transaction.atomic():
        stored = Order.objects.create()
        handle = getattr(tasks, how).with_options(conn=connection).enqueue_sync(stored.id)
    return JsonResponse({"order": stored.id, "task": handle.id})


def order_later(request: HttpRequest) -> JsonResponse:
    """Store an order, and enqueue after the commit."""
    with transaction.atomic():
        stored = Order.objects.create()
        on_commit(tasks.ship.call(stored.id))
    return JsonResponse({"order": stored.id})


async def order_async(request: HttpRequest) -> JsonResponse:
    """Store an order and enqueue in an asynchronous view."""
    stored = await Order.objects.acreate()
    await sync_to_async(tasks.ship.enqueue_sync)(stored.id)
    return JsonResponse({"order": stored.id})


def refuse(request: HttpRequest) -> JsonResponse:
    """Enqueue in both ways, and roll back."""
    try:
        with transaction.atomic():
            stored = Order.objects.create()
            tasks.ship.with_options(conn=connection).enqueue_sync(stored.id)
            on_commit(tasks.ship.call(stored.id))
            raise ValueError("sold out")
    except ValueError as error:
        return JsonResponse({"error": str(error)})
