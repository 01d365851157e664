"""A signature of Celery in the place of a task: unpacked as `add_periodic_task` does it, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery.utils import abstract

from celery_sqlbeat.checks import shown
from celery_sqlbeat.errors import FieldError

# What a worker cannot run as a task: Celery has tasks of these names, and they raise.
_NO_TASKS = {"celery.chain": "a chain", "celery.group": "a group"}
# What these are given, Celery writes as JSON.
_OF_TASKS = ("celery.chord", "celery.map", "celery.starmap", "celery.chunks")


class Called(NamedTuple):
    """What is to be sent, as the columns of a job have it."""

    task: object
    args: object
    kwargs: object
    options: object


def unpacked(task: object, args: object, kwargs: object, options: object) -> Called:
    """The name, the arguments and the options of a signature; of anything else, what was given.

    Raises a FieldError where something is said twice.
    """
    if not isinstance(task, abstract.CallableSignature):
        return Called(getattr(task, "name", task), args, kwargs, options)
    signature: Any = task
    name = signature.name
    if name in _NO_TASKS:
        raise FieldError(
            "TaskName",
            shown(task),
            f"{_NO_TASKS[name]} is no task that a worker could run: write a task that starts it, and schedule that one",
        )
    own = signature.kwargs
    return Called(
        name,
        _only_one("Args", args, signature.args, signature.immutable),
        _only_one("Kwargs", kwargs, _as_sent(own) if name in _OF_TASKS else own, signature.immutable),
        _joined(options, signature.options),
    )


def _only_one(field: str, given: Any, own: Any, immutable: bool) -> Any:
    if given is None or given in ((), [], {}):
        return _plain(own)
    if own:
        raise FieldError(field, shown(given), f"the signature has {_plain(own)!r} already: write them in one place")
    if immutable:
        raise FieldError(field, shown(given), "the signature is immutable: write them into it, as in task.si(1, 2)")
    return given


def _joined(given: Any, own: Mapping[str, Any]) -> Any:
    if not own:
        return given
    if given is not None and not isinstance(given, Mapping):
        return given  # refused for that
    for key, value in (given or {}).items():
        if key in own and own[key] != value:
            raise FieldError(f"Options.{key}", value, f"the signature says {own[key]!r}: write it in one place")
    return {**_plain(own), **(given or {})}


def _plain(value: Any) -> Any:
    """Signatures within it as the mappings that they are sent as, whatever they hold."""
    if isinstance(value, abstract.CallableSignature):
        return _as_sent(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {key: _plain(one) for key, one in value.items()}
    return value


def _as_sent(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_sent(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_sent(one) for one in value]
    return value
