"""One task in the hands of Celery: how it ends, how it is stopped, and what it tells its worker."""
