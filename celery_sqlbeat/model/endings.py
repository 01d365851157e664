"""Cut the texts of an ending to what every store keeps. Pure."""

from celery_sqlbeat.model.lifecycle import LONGEST_REASON, Ending

_LONGEST_ERROR = 2000  # characters; it begins with its type and what happened, and may go on with data
_LONGEST_TRACEBACK = 16000  # the other way round: its last lines say where it was raised


def storable(ending: Ending) -> Ending:
    """Return an ending whose texts every store takes; an error may hold bytes that are no text."""
    if ending.reason is ending.error is ending.traceback is None:
        return ending
    return ending._replace(
        reason=_end(ending.reason, LONGEST_REASON),
        error=_beginning(ending.error, _LONGEST_ERROR),
        traceback=_end(ending.traceback, _LONGEST_TRACEBACK),
    )


def _beginning(text: str | None, longest: int) -> str | None:
    clean = _clean(text)
    return clean if clean is None or len(clean) <= longest else clean[: longest - 4] + " ..."


def _end(text: str | None, longest: int) -> str | None:
    clean = _clean(text)
    return clean if clean is None or len(clean) <= longest else "... " + clean[4 - longest :]


def _clean(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
