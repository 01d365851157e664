"""Every error raised on purpose: each names what is wrong and what helps, and shows no secret."""

from collections.abc import Iterable, Mapping

LOCKED = "arguments are encrypted, and no key of this process opens them"
KEY_REMEDY = "set sqlbeat_payload_key to the keys of the other processes"
_LONGEST_SHOWN = 200  # characters of a value in an error


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


class SqlbeatError(Exception):
    """The base of all errors of celery-sqlbeat."""

    def __reduce__(self) -> tuple[object, ...]:
        """Cross to another process by what it says and knows: its text is no parameter."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[SqlbeatError], args: tuple[object, ...], facts: Mapping[str, object]) -> SqlbeatError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class SettingError(SqlbeatError):
    """A setting has a value that cannot work."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} = {value!r}: {allowed}")
        self.name, self.value, self.allowed = name, value, allowed


class FieldError(SqlbeatError):
    """A field of a job has a value that cannot work; beat puts such a row into quarantine."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {_cut(repr(value))}: {remedy}")
        self.field, self.value, self.remedy = field, value, remedy

    def hidden(self) -> "FieldError":
        """Return the error without the value, where that is an argument."""
        is_shown = self.field not in ("Args", "Kwargs") or isinstance(self, PayloadLocked)
        return self if is_shown else FieldError(self.field, "***", self.remedy)


class PayloadLocked(FieldError):
    """An argument is encrypted, and no key of this process opens it; a process that has it may."""

    def __init__(self, field: str) -> None:
        super().__init__(field, "***", f"{LOCKED}; {KEY_REMEDY}")


class ScheduleError(FieldError):
    """A schedule that cannot be read, or that would never fire."""

    def __init__(self, value: object, remedy: str) -> None:
        super().__init__("Schedule", value, remedy)


class PayloadKeyError(SqlbeatError):
    """The keys that encrypt arguments cannot be had."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"sqlbeat_payload_key = {source}: {reason}")


class StoreError(SqlbeatError):
    """The database failed; only where it is a TransientError may a retry help."""


class TransientError(StoreError):
    """The database did not do this work for now; trying again later may help."""


class DatabaseUnavailable(TransientError):
    """The database cannot be reached, or the connection to it was lost."""


class DatabaseBusy(TransientError):
    """A row or the file is locked, or a statement took too long; that is no outage."""


class DatabaseUncertain(DatabaseBusy):
    """The database answered with an unknown error, so that the outcome is not known for now."""


class BrokerUnavailable(SqlbeatError):
    """The broker cannot be reached for now; trying again later may help."""


class BrokerMismatch(SqlbeatError):
    """A living beat of the same namespace sends its messages to another broker."""

    def __init__(self, own: str, beat: str, other: str) -> None:
        super().__init__(
            f"this beat sends to the broker {own}, but {beat} of the same namespace sends to {other}: set the same "
            "broker_url for both, give this one a sqlbeat_namespace of its own, or stop the other one first"
        )
        self.own, self.beat, self.other = own, beat, other


class RowRefused(StoreError):
    """The database refuses what stands in some row of a batch; the other rows could be written."""


class DriverMissing(StoreError):
    """The driver of this kind of database is not installed."""


class SchemaError(StoreError):
    """The schema in the database is not the one that this version needs."""


class ReleaseTooOld(SchemaError):
    """The schema is one that this release must not work on any more."""

    def __init__(self, version: int, own: str, oldest: str) -> None:
        super().__init__(
            f"the schema is at version {version} and needs celery-sqlbeat {oldest} or later, this is {own}: "
            "upgrade the package in this environment"
        )
        self.version, self.own, self.oldest = version, own, oldest


class TablesMissing(SchemaError):
    """The database has no tables of this package."""

    def __init__(self) -> None:
        super().__init__("the tables are not there yet: run celery -A app sqlbeat init")


class MigrationChanged(SchemaError):
    """A migration that was already applied differs from the file of the same number."""

    def __init__(self, number: int, expected: str, found: str) -> None:
        super().__init__(
            f"migration {number:04d} was applied with checksum {found[:12]}, the file has {expected[:12]}: "
            "restore the released file; a schema is changed by a new migration only"
        )
        self.number, self.expected, self.found = number, expected, found


class VersionConflict(SqlbeatError):
    """Somebody else changed the row after it was read."""

    def __init__(self, name: str, expected: int) -> None:
        super().__init__(f"{name!r} is no longer at version {expected}: read it again and repeat the change")
        self.name, self.expected = name, expected


class NoSuchJob(SqlbeatError):
    """There is no job of this name in the namespace."""

    def __init__(self, name: str, namespace: str) -> None:
        super().__init__(f"there is no job {name!r} in namespace {namespace!r}: see celery -A app sqlbeat jobs list")
        self.name, self.namespace = name, namespace


class NoSuchRun(SqlbeatError):
    """There is no run of this id in the namespace, or it was purged."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}, or it was purged: see celery -A app sqlbeat runs list")
        self.run_id = run_id


class AppIsAlive(SqlbeatError):
    """The jobs of an app are its own while a beat of it is alive."""

    def __init__(self, owner: str, beat: str) -> None:
        super().__init__(f"the app {owner!r} has a living beat, {beat}: stop its beats first, then adopt its jobs")
        self.owner, self.beat = owner, beat


class NoJobsOf(SqlbeatError):
    """The app has no jobs in the namespace."""

    def __init__(self, owner: str, namespace: str, others: Iterable[str]) -> None:
        there = ", ".join(sorted(others)) or "none"
        super().__init__(f"the app {owner!r} has no jobs in namespace {namespace!r}; apps that have some: {there}")
        self.owner, self.namespace = owner, namespace


class JobBeingDeleted(SqlbeatError):
    """The job is to be deleted as soon as its run has ended, so it takes no change."""

    def __init__(self, name: str) -> None:
        super().__init__(f"job {name!r} is deleted as soon as its run has ended: wait for that, and define it again")
        self.name = name


class LeaseLost(SqlbeatError):
    """The run no longer holds its lease: what it writes may overlap its successor."""


class AlreadyDone(SqlbeatError):
    """The effects of this slot were done before; a task that lets this out ends as a success."""

    def __init__(self, job_name: str, slot: str, attempt: int) -> None:
        super().__init__(
            f"the effects of {job_name!r} for {slot} were done by attempt {attempt}: nothing is left to do"
        )
        self.job_name, self.slot, self.attempt = job_name, slot, attempt


class SecondTransaction(SqlbeatError):
    """A body has asked for a second guarded transaction, whose effects nothing would count."""

    def __init__(self, job_name: str, slot: str) -> None:
        remedy = "put all that is to be done once into one block of current_run().transaction()"
        super().__init__(f"the effects of {job_name!r} for {slot} were committed by this very body: {remedy}")
        self.job_name, self.slot = job_name, slot


class UnusableConnection(SqlbeatError):
    """A connection that the caller gave cannot be used for what was asked; nothing was written."""


class RunCancelled(SqlbeatError):
    """Somebody has cancelled the run of this task: it ends as cancelled, whatever follows."""


class LockNotAcquired(SqlbeatError):
    """Somebody else holds the lock, and did so for as long as the caller would wait."""

    def __init__(self, key: str, holder: str, fence: int, held_seconds: float, left_seconds: float) -> None:
        super().__init__(
            f"the lock {key!r} is held by {holder}, for {held_seconds:.1f} s and with fence {fence}; its lease ends in "
            f"{left_seconds:.1f} s unless it is extended: wait longer, or take it away by "
            "celery -A app sqlbeat locks release KEY --force"
        )
        self.key, self.holder, self.fence = key, holder, fence
        self.held_seconds, self.left_seconds = held_seconds, left_seconds


class IdempotencyConflict(SqlbeatError):
    """The idempotency key stands for a run of another task, or with other arguments."""

    def __init__(self, key: str, task: str, run_id: str, first_task: str | None) -> None:
        what = "other arguments" if first_task == task else f"task {first_task}"
        super().__init__(
            f"the idempotency key {_cut(key)!r} stands for run {run_id}, which was submitted with {what}; this call is "
            f"for task {task}: give each call a key of its own, or the same task and arguments for the same key"
        )
        self.key, self.task, self.run_id, self.first_task = key, task, run_id, first_task


class RunHasEnded(SqlbeatError):
    """The run has ended, or another attempt has followed it: there is nothing to cancel."""

    def __init__(self, run_id: str, state: str) -> None:
        followed = ", and another attempt of its slot has followed" if state == "retry" else ""
        super().__init__(f"run {run_id} has ended as {state}{followed}: there is nothing to cancel")
        self.run_id, self.state = run_id, state


class RunNotEnded(SqlbeatError, TimeoutError):
    """The run goes on, or waits, for longer than the caller would wait for its end."""

    def __init__(self, run_id: str, state: str, seconds: float) -> None:
        super().__init__(
            f"run {run_id} is {state} after {seconds:g} s: wait longer, or see celery -A app sqlbeat runs show {run_id}"
        )
        self.run_id, self.state, self.seconds = run_id, state, seconds


class MaxRuntimeExceeded(SqlbeatError):
    """The body of a run took longer than the `max_runtime` of its job, and was stopped."""


class ProcessLost(SqlbeatError):
    """The process of the pool that ran the last attempt of a slot has ended."""


class AttemptFollowed(SqlbeatError):
    """Another attempt followed: the final result of an earlier attempt of an ended slot."""


class SourceUnreadable(SqlbeatError):
    """Where jobs are to come from, they cannot be read."""


class LineError(SqlbeatError):
    """A line of a file of jobs has a value that cannot work."""

    def __init__(self, line: int, field: str, value: object, remedy: str) -> None:
        named = field if field.isprintable() and len(field) <= _LONGEST_SHOWN else _cut(repr(field))
        super().__init__(f"line {line}, {named} = {_cut(repr(value))}: {remedy}" if field else f"line {line}: {remedy}")
        self.line, self.field, self.value, self.remedy = line, field, value, remedy


# The names of 0.1.0, for those who import them.
BrokerAway = BrokerUnavailable
DatabaseAway = DatabaseUnavailable
JobGoes = JobBeingDeleted
OtherBroker = BrokerMismatch
