"""A task in a module that no installed app imports when it starts."""

from django.tasks import task


@task
def late() -> None:
    """Never runs."""
    raise AssertionError("a worker has imported a name that it found in a row")
