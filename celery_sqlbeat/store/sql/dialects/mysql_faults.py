"""What the error numbers of MySQL, MariaDB and PyMySQL mean."""

from collections.abc import Iterable, Iterator

import pymysql

from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.faults import by_state

# https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html and
# https://mariadb.com/kb/en/mariadb-error-code-reference/
_NUMBERS: dict[Fault, Iterable[int]] = {
    Fault.DEADLOCK: (1020, 1213, 1614),  # also a row that changed since its snapshot
    # A lock-wait time-out, a statement time-out, a lock not waited for, a definition that changed.
    Fault.TRANSIENT: (1205, 1317, 1412, 1615, 1969, 3024, 3058, 3572),
    # Disk, memory, connections.
    Fault.THROTTLED: (1021, 1037, 1038, 1040, 1041, 1114, 1135, 1203, 1226),
    # 2xxx: the driver's; 1290, 1792, 1836: this server became a replica; 4031: wait_timeout.
    Fault.LOST: (
        *range(2000, 2100), 1042, 1043, 1047, 1053, 1077, 1152, *range(1154, 1162), 1184, 1290, 1792, 1836, 1927, 4031,
    ),
    Fault.CONFLICT: (1022, 1062, 1586),
    # What stands in a row: NULL, a length, a range, a text that is none, a constraint, a trigger's
    # own SIGNAL; and a batch longer than max_allowed_packet, of which a half may do.
    Fault.REFUSED: (
        1048, 1153, 1216, 1217, 1263, 1264, 1265, 1292, 1301, 1364, 1366, 1367, 1406, 1411, 1441, 1451, 1452, 1644,
        1690, 1761, 1762, 3140, 3141, 3156, 3819, 3903, 4025, 4038, 4078, 4079, 4174, 4175, 4176, 4177, 4178,
    ),
    # What can never succeed as it is: who is not let in, syntax, a missing table or column, rights.
    Fault.FATAL: (
        1044, 1045, 1046, 1049, 1054, 1064, 1100, 1109, 1129, 1130, 1142, 1143, 1146, 1227, 1251, 1305, 1370, 1419,
        1524, 1698, 1820, 1862, 2059, 2061, 3118, 3159, 4151,
    ),
}  # fmt: skip
_FAULTS = {number: fault for fault, numbers in _NUMBERS.items() for number in numbers}
# For numbers that no list has.
_STATES = {
    "08": Fault.LOST,
    "22": Fault.REFUSED,
    "23": Fault.REFUSED,
    "28": Fault.FATAL,
    "40": Fault.DEADLOCK,
    "42": Fault.FATAL,
    "44": Fault.REFUSED,
    "45": Fault.REFUSED,
}


def fault_of(error: pymysql.Error) -> Fault:
    """Classify an error by its number, else by its SQLSTATE."""
    if isinstance(error, pymysql.InterfaceError):  # the connection is closed
        return Fault.LOST
    number = error.args[0] if error.args else None
    fault = _FAULTS.get(number) if isinstance(number, int) else None
    return fault or by_state(_STATES, getattr(error, "sqlstate", None) or "")


def told(error: BaseException) -> str:
    """Return the text of an error with its number behind it, in one line."""
    return " ".join(" ".join(_pieces(error)).split())


def _pieces(error: BaseException) -> Iterator[str]:
    if isinstance(error, pymysql.Error) and len(error.args) > 1 and isinstance(error.args[0], int):
        yield str(error.args[1])
        yield f"(error {error.args[0]})"
    else:
        yield str(error) or type(error).__name__
