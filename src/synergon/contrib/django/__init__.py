"""synergon in a Django project.

Add "synergon.contrib.django" to INSTALLED_APPS, register tasks in `tasks.py` of your apps, and run them with `manage.py
synergon_worker`:

    from synergon.contrib.django import engine, on_commit

    @engine.task
    def send_invoice(order_id: int) -> None: ...

    on_commit(send_invoice.call(order.id))                                 # after the commit
    send_invoice.with_options(conn=connection).enqueue_sync(order.id)      # in the transaction itself

The setting SYNERGON has the arguments of the engine. Without a URL there or in $SYNERGON_URL, the engine uses the
default database of Django.
"""

from synergon.contrib.django.project_engine import engine, on_commit

__all__ = ["engine", "on_commit"]
