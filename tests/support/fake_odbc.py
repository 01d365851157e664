"""Something like pyodbc, for tests of what is done with it where unixODBC is not installed.

What the tests rely on is as pyodbc 5.3 has it, and test_odbc.py holds the two beside each other:
the classes of errors and their order, `args` of an error as (SQLSTATE, "[SQLSTATE] text (native
number) (ODBC function)"), and the arguments of `connect`.
"""

from collections.abc import Callable, Sequence
from typing import Any


class Error(Exception):
    pass


class InterfaceError(Error):
    pass


class DatabaseError(Error):
    pass


class OperationalError(DatabaseError):
    pass


class ProgrammingError(DatabaseError):
    pass


class FakeCursor:
    description: Any = None

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def setinputsizes(self, sizes: object) -> None:
        pass

    def execute(self, text: str, values: Sequence[Any] = ()) -> "FakeCursor":
        self._log.append(text)
        self.values = values
        return self

    def nextset(self) -> bool:
        return False


class FakeConnection:
    """A connection that notes what is executed; each in its turn raises the errors it was given."""

    def __init__(self, *errors: Exception) -> None:
        self.log: list[str] = []
        self.timeout = 0
        self.closed = False
        self._errors = list(errors)

    def cursor(self) -> FakeCursor:
        return FakeCursor(self.log)

    def execute(self, text: str) -> FakeCursor:
        if self._errors:
            raise self._errors.pop(0)
        return FakeCursor(self.log).execute(text)

    def add_output_converter(self, kind: int, function: object) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class FakePyodbc:
    """The module: what it was asked to connect to, and the connections or errors that it gives."""

    BinaryNull = object()
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    OperationalError = OperationalError
    ProgrammingError = ProgrammingError

    def __init__(self, *answers: FakeConnection | Exception, make: Callable[[], Any] = FakeConnection) -> None:
        self.pooling = True
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = list(answers)
        self._make = make

    def drivers(self) -> list[str]:
        return ["ODBC Driver 18 for SQL Server"]

    def connect(self, string: str, **settings: Any) -> Any:
        self.asked.append((string, settings))
        answer = self._answers.pop(0) if self._answers else self._make()
        if isinstance(answer, Exception):
            raise answer
        return answer
