"""What is wrong with an installation: facts are gathered in a bounded time, and pure functions say what they mean."""

from celery_sqlbeat.diagnosis.diagnosis import diagnose
from celery_sqlbeat.diagnosis.finding import Finding

__all__ = ["Finding", "diagnose"]
