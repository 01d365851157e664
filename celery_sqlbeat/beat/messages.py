"""What a message says about the claim that it carries. Pure. The claim id stands in the header and nowhere else."""

from typing import Any

from celery_sqlbeat.beat.check_ins import headers_of
from celery_sqlbeat.model import Claim

HEADER = "sqlbeat"
VERSION = 1  # of the header; a worker leaves a message alone whose version it does not know
LONGEST_NAME = 200  # characters of a job's name in argsrepr, which Celery keeps below a thousand


def header(claim: Claim, store_id: str, namespace: str) -> dict[str, Any]:
    """The headers that tell a worker which claim it is about to start, and the ecosystem who sent the message.

    What they say of a leased slot; `say_how` tells another one.
    """
    return {
        HEADER: {
            "v": VERSION,
            "store": store_id,
            "namespace": namespace,
            "run": claim.run_id,
            "claim": claim.claim_id,
            "fence": claim.fence,
            "lease": claim.lease_seconds,
        },
        "celery_beat_task": True,
        "periodic_task_name": claim.job_name,
    }


def say_how(headers: dict[str, Any], is_leased: bool, to_one_queue: bool) -> None:
    """Say in the headers of a message that it is fired and forgotten: workers of any store may run it as a plain one.

    Of copies in several queues each is to run: to a worker that knew the run, all but one were duplicates.
    """
    own = headers.get(HEADER)
    if own is None or is_leased:
        return
    if to_one_queue:
        headers[HEADER] = {**own, "forgotten": True}
    else:
        del headers[HEADER]


def options(claim: Claim, store_id: str, namespace: str) -> dict[str, Any]:
    """The options of the job as `apply_async` takes them: the run is the task's id, the claim is in the headers."""
    own = header(claim, store_id, namespace)
    headers = {**(claim.options.get("headers") or {}), **headers_of(claim.check_in), **own}
    return {**claim.options, "task_id": claim.run_id, "headers": headers}


def label(claim: Claim) -> str:
    """What follows the arguments in argsrepr, for people. It is a comment, so that the text still reads as Python."""
    return f"  # {' '.join(claim.job_name.split())[:LONGEST_NAME]}, attempt {claim.slot.attempt}"
