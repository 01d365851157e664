"""The only room that touches undocumented symbols of Celery and its libraries; see `symbols`."""
