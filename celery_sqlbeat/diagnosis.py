"""The former name of `celery_sqlbeat.checks`, for programs that import it."""

from celery_sqlbeat.checks import Finding, diagnose

__all__ = ["Finding", "diagnose"]
