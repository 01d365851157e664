"""What an error of SQL Server means is decided by its number, then by its SQLSTATE."""

import pytest

from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.mssql_faults import FAULTS, fault_of, is_refused_login

SERVER = "[{}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{} ({}) (SQLExecDirectW)"
DRIVER = "[{}] [Microsoft][ODBC Driver 18 for SQL Server]{} ({}) (SQLDriverConnect)"


@pytest.mark.parametrize(
    ("state", "text", "fault"),
    [
        ("40001", SERVER.format("40001", "deadlocked on lock resources", 1205), Fault.DEADLOCK),
        ("42000", SERVER.format("42000", "Lock request time out period exceeded.", 1222), Fault.TRANSIENT),
        ("23000", SERVER.format("23000", "Violation of UNIQUE KEY constraint 'Jobs_Name'.", 2627), Fault.CONFLICT),
        ("23000", SERVER.format("23000", "Cannot insert duplicate key row in 'JobRuns_Slot'.", 2601), Fault.CONFLICT),
        ("23000", SERVER.format("23000", "conflicted with the CHECK constraint", 547), Fault.REFUSED),
        ("HY000", SERVER.format("HY000", "The service is currently busy.", 40501), Fault.THROTTLED),
        ("42000", SERVER.format("42000", "The session limit is 300 and has been reached.", 10928), Fault.THROTTLED),
        ("HY000", DRIVER.format("HY000", "Database 'x' is not currently available.", 40613), Fault.LOST),
        ("42000", DRIVER.format("42000", "Cannot open database 'x' requested by the login.", 4060), Fault.LOST),
        ("42000", SERVER.format("42000", "the database is read-only.", 3906), Fault.LOST),
        ("42000", SERVER.format("42000", "Reauthentication failed for login", 40623), Fault.LOST),
        ("42000", SERVER.format("42000", "the table is altered too frequently", 4184), Fault.TRANSIENT),
        ("42000", SERVER.format("42000", "the server is currently busy", 40903), Fault.THROTTLED),
        ("28000", DRIVER.format("28000", "Login failed for user 'sa'.", 18456), Fault.FATAL),
        ("42S02", SERVER.format("42S02", "Invalid object name 'dbo.Jobs'.", 208), Fault.FATAL),
        ("08001", DRIVER.format("08001", "TCP Provider: Error code 0x274D", 10061), Fault.LOST),
        ("08S01", DRIVER.format("08S01", "TCP Provider: Error code 0x68", 104), Fault.LOST),
        ("08S01", DRIVER.format("08S01", "Communication link failure", 0), Fault.LOST),
        ("HYT00", SERVER.format("HYT00", "Query timeout expired", 0), Fault.AMBIGUOUS),
        ("HYT00", DRIVER.format("HYT00", "Login timeout expired", 0), Fault.AMBIGUOUS),
        ("HYT01", DRIVER.format("HYT01", "Connection timeout expired", 0), Fault.LOST),
        ("08S01", DRIVER.format("08S01", "TCP Provider: Timeout error [258]. ", 258), Fault.LOST),
        ("HY000", DRIVER.format("HY000", "Login failed due to timeout", 17197), Fault.THROTTLED),
        ("IMC06", DRIVER.format("IMC06", "The connection is broken and recovery is not possible.", 0), Fault.LOST),
        ("IM002", DRIVER.format("IM002", "Data source name not found", 0), Fault.FATAL),
        ("", "Attempt to use a closed connection.", Fault.FATAL),
    ],
)
def test_an_error_is_classified(state: str, text: str, fault: Fault) -> None:
    assert fault_of(state, text) is fault


def test_the_number_wins_over_the_state() -> None:
    assert fault_of("08004", DRIVER.format("08004", "Resource limit", 10929)) is Fault.THROTTLED


def test_the_first_known_number_of_several_messages_decides() -> None:
    both = SERVER.format("23000", "duplicate", 2627) + "; [01000] [Microsoft]The statement has been terminated. (3621)"
    assert fault_of("23000", both) is Fault.CONFLICT
    late = DRIVER.format("08001", "TCP Provider", 10060) + "; [08001] Login timeout expired (0)"
    assert fault_of("08001", late) is Fault.LOST


def test_a_number_within_a_message_is_no_error_number() -> None:
    text = SERVER.format("23000", "The duplicate key value is (default, job (1205)).", 2627)
    assert fault_of("23000", text) is Fault.CONFLICT
    assert fault_of("42000", SERVER.format("42000", "near (1205) here", 102)) is Fault.FATAL


def test_a_refused_login_is_told_by_state_and_number() -> None:
    text = DRIVER.format("28000", "Login failed for user 'a (18456) b'.", 18456)
    assert is_refused_login("28000", text)
    assert not is_refused_login("42000", SERVER.format("42000", "near (18456) here", 102))
    assert not is_refused_login("28000", DRIVER.format("28000", "Login failed for user 'a (18456) b'.", 18452))


def test_only_a_refused_login_or_address_is_known_and_fatal() -> None:
    assert {number for number, fault in FAULTS.items() if fault is Fault.FATAL} == {18456, 40532, 40615, 40914}
