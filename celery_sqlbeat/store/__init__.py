"""The store: everything that is written to the database. It decides nothing."""

from celery_sqlbeat.store.opening import Store, open_store

__all__ = ["Store", "open_store"]
