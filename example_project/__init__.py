"""A shop that runs Celery with celery-sqlbeat: copy it, and put your own tasks in."""

from example_project.celery import app

__all__ = ["app"]
