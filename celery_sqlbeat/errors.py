"""Every error that this package raises on purpose; each names what is wrong and what helps.

No error carries a secret: whoever raises one has masked it before.
"""


class SqlbeatError(Exception):
    """The base of all errors of celery-sqlbeat."""


class SettingError(SqlbeatError):
    """A setting has a value that cannot work."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} = {value!r}: {allowed}")
        self.name, self.value, self.allowed = name, value, allowed


class FieldError(SqlbeatError):
    """A field of a job has a value that cannot work; beat puts such a row into quarantine."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:197] + "..."
        super().__init__(f"{field} = {shown}: {remedy}")
        self.field, self.value, self.remedy = field, value, remedy


class ScheduleError(FieldError):
    """A schedule that cannot be read, or that would never fire."""

    def __init__(self, value: object, remedy: str) -> None:
        super().__init__("Schedule", value, remedy)


class IllegalTransition(SqlbeatError):
    """A run cannot go from one state to another."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(f"a run cannot go from {before!r} to {after!r}")
        self.before, self.after = before, after


class StoreError(SqlbeatError):
    """The database refused a statement, and trying again would not help."""


class DatabaseAway(StoreError):
    """The database cannot be reached for now; trying again later may help."""


class BrokerAway(SqlbeatError):
    """The broker cannot be reached for now; trying again later may help."""


class DriverMissing(StoreError):
    """The driver of this kind of database is not installed."""


class SchemaError(StoreError):
    """The schema in the database is not the one that this version needs."""


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


class LeaseLost(SqlbeatError):
    """This run no longer holds its lease: what it writes may overlap its successor."""
