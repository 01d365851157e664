"""The schedule, as stock beat takes it, too."""

from typing import Any

from celery.schedules import crontab

beat_schedule: dict[str, dict[str, Any]] = {
    "ping-shops": {"task": "example_project.tasks.ping_shops", "schedule": 2.0},
    "count-orders": {"task": "example_project.tasks.count_orders", "schedule": 5.0},
    "build-report": {"task": "example_project.tasks.build_report", "schedule": 5.0, "kwargs": {"seconds": 9}},
    "fetch-rates": {"task": "example_project.tasks.fetch_rates", "schedule": 10.0},
    "close-books": {"task": "example_project.tasks.close_books", "schedule": crontab(minute="30", hour="3")},
}
