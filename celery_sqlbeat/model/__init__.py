"""The facts that walk through the house: rows read, claims made, runs started and ended. Frozen, without behaviour."""

from celery_sqlbeat.model.code import (
    CODE_SCHEDULE,
    LEFT_THE_CODE,
    CodeAddition,
    CodeChange,
    CodeChanges,
    CodeDefinition,
    CodeRow,
)
from celery_sqlbeat.model.plan import (
    MANUAL,
    SCHEDULE,
    Advance,
    Attempt,
    Claim,
    GapRecord,
    LeftAttempt,
    Mend,
    Plan,
    Quarantine,
    Slot,
)
from celery_sqlbeat.model.records import JobDraft, JobRecord, Node, RunRecord, SeenNode
from celery_sqlbeat.model.rows import DueJob, HeldLease, LooseRow
from celery_sqlbeat.model.runs import StartedRun, StartRequest

__all__ = [
    "CODE_SCHEDULE",
    "LEFT_THE_CODE",
    "MANUAL",
    "SCHEDULE",
    "Advance",
    "Attempt",
    "Claim",
    "CodeAddition",
    "CodeChange",
    "CodeChanges",
    "CodeDefinition",
    "CodeRow",
    "DueJob",
    "GapRecord",
    "HeldLease",
    "JobDraft",
    "JobRecord",
    "LeftAttempt",
    "LooseRow",
    "Mend",
    "Node",
    "Plan",
    "Quarantine",
    "RunRecord",
    "SeenNode",
    "Slot",
    "StartRequest",
    "StartedRun",
]
