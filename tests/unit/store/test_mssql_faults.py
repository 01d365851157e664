"""What an error of SQL Server means is decided by its number, then by its SQLSTATE."""

import pytest

from celery_sqlbeat.store.faults import AGAIN, Fault
from celery_sqlbeat.store.sql.dialects.mssql_faults import FAULTS, fault_of, is_refused_login

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
        ("", "Attempt to use a closed connection.", Fault.UNKNOWN),
        ("HY000", SERVER.format("HY000", "Connection may have been terminated by the server.", 0), Fault.UNKNOWN),
        ("42000", SERVER.format("42000", "said by no list", 99999), Fault.UNKNOWN),
        ("42000", DRIVER.format("42000", "Database 'x' cannot be opened: it is not started.", 941), Fault.LOST),
        ("42000", SERVER.format("42000", "The SELECT permission was denied", 229), Fault.FATAL),
        ("42S22", SERVER.format("42S22", "Invalid column name 'x'.", 99998), Fault.FATAL),
        ("22018", SERVER.format("22018", "not a number", 0), Fault.REFUSED),
    ],
)
def test_an_error_of_sql_server_is_classified_by_its_number_then_by_its_state(
    state: str, text: str, fault: Fault
) -> None:
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


# What public lists of transient errors have (Entity Framework Core, Microsoft.Data.SqlClient), and
# what is said in a fail-over; without what belongs to features that this package does not use.
TRIED_AGAIN = """
    20 64 121 203 233 258 601 615 617 669 701 802 844 845 847 911 913 921 922 924 926 927 941 945 952 976 978
    979 982 983 988 997 1101 1105 1132 1203 1204 1205 1221 1222 1232 2816 3635 3906 3908 3941 3947 3948 3950
    3966 3971 3980 4060 4064 4117 4184 4221 6005 8179 8628 8645 8651 9002 9020 10053 10054 10060 10061 10922
    10928 10929 10930 10936 11001 17065 17066 17067 17142 17197 17809 17889 18401 18451 18461 22225 22226
    22335 22355 22358 22427 22430 22491 22493 22498 40106 40143 40189 40197 40501 40540 40544 40549 40550
    40551 40552 40553 40613 40623 40642 40648 40671 40675 40903 41614 41619 41640 42108 42109 45156 45157
    45161 45182 49510 49802 49918 49919 49920 49977 49983
"""


def test_what_the_public_lists_try_again_is_tried_again() -> None:
    faults = {number: fault_of("42000", SERVER.format("42000", "whatever", number)) for number in TRIED_AGAIN.split()}
    assert {number: fault for number, fault in faults.items() if fault not in AGAIN} == {}


def test_what_can_never_succeed_is_a_short_list() -> None:
    refused = {number for number, fault in FAULTS.items() if fault is Fault.FATAL}
    assert {18456, 40532, 40615, 40914, 102, 207, 208, 229} <= refused
    assert len(refused) < len(FAULTS) / 3
