"""The name under which settings of users import `folder_url`."""

from celery_sqlbeat.brokers import folder_url

__all__ = ["folder_url"]
