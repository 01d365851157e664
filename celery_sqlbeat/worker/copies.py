"""A header of ours that a task has sent on with a message of its own, as by `headers=self.request.headers`.

Such a message is the user's: it runs as it would without us, and takes the claim no further.
"""

import logging
from typing import Any

from celery_sqlbeat.worker.header import HEADER, is_copied
from celery_sqlbeat.worker.secrecy import SECOND_COPY

logger = logging.getLogger(__name__)

_told: set[str] = set()  # tasks, each of which is spoken of once


def is_ours(req: Any) -> bool:
    """Whether a message has a header of ours. One of another message is taken from it first."""
    request = req.request_dict
    raw = request.get(HEADER)
    if raw is None or not is_copied(raw, request):
        return raw is not None
    del request[HEADER]
    properties = request.get("properties")
    if isinstance(properties, dict) and SECOND_COPY in properties:
        rest = {name: value for name, value in properties[SECOND_COPY].items() if name != HEADER}
        request["properties"] = {**properties, SECOND_COPY: rest}
    if req.name not in _told:
        _told.add(req.name)
        logger.warning(
            "task %s came with the sqlbeat header of another message, which its sender must have sent on: "
            "it runs as an ordinary task, without a lease (said once per task)",
            req.name,
        )
    return False
