"""A scheduler for Celery whose schedule lives in a SQL table; the public names."""

from celery_sqlbeat.errors import SqlbeatError

__version__ = "0.1.0"
__all__ = ["SqlbeatError", "__version__"]
