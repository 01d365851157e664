"""Classify SQL Server's errors by their native numbers, never by the text of a message."""

import re

from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.faults import by_state

# Sources: Microsoft Learn, "Database engine events and errors", "Troubleshoot transient connection
# errors in Azure SQL", "Resource management in Azure SQL Database", "Serverless compute tier"
# (40613 while it resumes), "Errors for Always On availability groups"; the retry lists of Entity
# Framework Core (SqlServerTransientExceptionDetector) and of Microsoft.Data.SqlClient
# (SqlConfigurableRetryFactory). Numbers of those lists that are not here belong to features that
# are not used: memory-optimized tables (413xx), SNAPSHOT (3957, 3960), Synapse, replication, full
# text, the commands that manage servers, pools and groups. faults.py has one wait per class; a
# service that asks for ten seconds (40501) gets them from the circuit breaker.

FAULTS = {
    # Victims and locks: the transaction was undone, or is undone by our rollback.
    1205: Fault.DEADLOCK,  # chosen as the victim of a deadlock
    1222: Fault.TRANSIENT,  # our LOCK_TIMEOUT
    1203: Fault.TRANSIENT,  # a resource was unlocked that was not locked
    1221: Fault.TRANSIENT,  # a group of locks is released that the transaction does not hold
    601: Fault.TRANSIENT,  # rows moved under a scan
    617: Fault.TRANSIENT,  # an object's descriptor is not where it was
    669: Fault.TRANSIENT,  # a row that is inconsistent for a moment
    844: Fault.TRANSIENT,  # a latch was waited for too long
    845: Fault.TRANSIENT,  # the same, of a page
    847: Fault.TRANSIENT,  # the same, of another kind
    1232: Fault.TRANSIENT,  # no answer from the lock manager
    2816: Fault.TRANSIENT,  # an object has changed under the statement
    3635: Fault.TRANSIENT,  # the metadata of the database could not be processed
    3941: Fault.TRANSIENT,  # the transaction cannot go on
    3947: Fault.TRANSIENT,  # Azure: ended, the secondary did not catch up
    3948: Fault.TRANSIENT,  # ended by a change of the availability group
    3950: Fault.TRANSIENT,  # a row version did not come in time; READ_COMMITTED_SNAPSHOT reads these
    3966: Fault.TRANSIENT,  # ended, a row version is gone
    3980: Fault.TRANSIENT,  # the batch was being cancelled
    4117: Fault.TRANSIENT,  # a table with a computed column is altered too often: a migration runs
    4184: Fault.TRANSIENT,  # the same, with a filtered index
    10922: Fault.TRANSIENT,  # rerun the statement
    51222: Fault.TRANSIENT,  # ours, sql/mssql/statements/schema.sql: another migration runs
    # A unique key is taken.
    2601: Fault.CONFLICT,  # by a row of a unique index
    2627: Fault.CONFLICT,  # by a row of a constraint
    # What stands in a row: a value that its column does not take, a constraint, a trigger.
    220: Fault.REFUSED,  # overflow
    241: Fault.REFUSED,  # no instant
    242: Fault.REFUSED,  # an instant out of range
    245: Fault.REFUSED,  # no conversion
    515: Fault.REFUSED,  # NULL
    517: Fault.REFUSED,  # a sum beyond the calendar
    547: Fault.REFUSED,  # a constraint
    550: Fault.REFUSED,  # the check of a view
    2628: Fault.REFUSED,  # too long
    3609: Fault.REFUSED,  # a trigger has ended the transaction
    8114: Fault.REFUSED,  # no conversion
    8115: Fault.REFUSED,  # overflow
    8152: Fault.REFUSED,  # too long
    8169: Fault.REFUSED,  # no uniqueidentifier
    50000: Fault.REFUSED,  # raised by a trigger of the shop's own
    # Too much to do: memory, locks, space, or the limits of a tier.
    701: Fault.THROTTLED,  # not enough memory to run the statement
    802: Fault.THROTTLED,  # not enough memory in the buffer pool
    1101: Fault.THROTTLED,  # no new page: the file group is full
    1105: Fault.THROTTLED,  # no space for an object: the file group is full
    1132: Fault.THROTTLED,  # Azure: the elastic pool has reached its storage
    1204: Fault.THROTTLED,  # no lock resources left
    8628: Fault.THROTTLED,  # waited too long to optimize the statement
    8645: Fault.THROTTLED,  # waited too long for memory
    8651: Fault.THROTTLED,  # less memory than the statement needs
    9002: Fault.THROTTLED,  # the transaction log is full
    9020: Fault.THROTTLED,  # the transaction log cannot grow while it is shrunk
    10928: Fault.THROTTLED,  # Azure: the limit of sessions or workers is reached
    10929: Fault.THROTTLED,  # Azure: the server is too busy for more than this database's guarantee
    10930: Fault.THROTTLED,  # Azure: the service is too busy
    10936: Fault.THROTTLED,  # Azure: the limit of the elastic pool is reached
    17197: Fault.THROTTLED,  # login timed out under heavy load
    17809: Fault.THROTTLED,  # the limit of user connections is reached
    17889: Fault.THROTTLED,  # the limit of connections is reached
    22335: Fault.THROTTLED,  # Azure: no lock resources left
    22498: Fault.THROTTLED,  # Azure: not enough resources
    40189: Fault.THROTTLED,  # Azure: the quota of this window is used up
    40501: Fault.THROTTLED,  # Azure: the service is busy, again in ten seconds
    40544: Fault.THROTTLED,  # Azure: the database has reached its size
    40549: Fault.THROTTLED,  # Azure: ended, a transaction ran too long
    40550: Fault.THROTTLED,  # Azure: ended, too many locks
    40551: Fault.THROTTLED,  # Azure: ended, too much of tempdb
    40552: Fault.THROTTLED,  # Azure: ended, too much of the log
    40553: Fault.THROTTLED,  # Azure: ended, too much memory
    40642: Fault.THROTTLED,  # Azure: the server is too busy
    40648: Fault.THROTTLED,  # Azure: too many requests
    40675: Fault.THROTTLED,  # Azure: the service is too busy
    40903: Fault.THROTTLED,  # Azure: the server is busy, again in a few minutes
    45182: Fault.THROTTLED,  # Azure: the database is busy with another operation
    49918: Fault.THROTTLED,  # Azure: not enough resources for the request
    49919: Fault.THROTTLED,  # Azure: too many create or update operations
    49920: Fault.THROTTLED,  # Azure: too many operations
    49977: Fault.THROTTLED,  # Azure: the elastic pool is busy with another operation
    49983: Fault.THROTTLED,  # Azure: the operation did not complete, try again
    # The database is on its way from one server to another, starting, or not there for now.
    615: Fault.LOST,  # the database may be offline, wait a few minutes
    911: Fault.LOST,  # no such database: during a fail-over; a wrong name looks the same, as 4060
    913: Fault.LOST,  # no database of this number
    921: Fault.LOST,  # not recovered yet
    922: Fault.LOST,  # being recovered
    924: Fault.LOST,  # in single-user mode, and somebody is in it
    926: Fault.LOST,  # marked suspect: beats stay up while an administrator repairs it
    927: Fault.LOST,  # in the middle of a restore
    941: Fault.LOST,  # not started yet: a fail-over
    942: Fault.LOST,  # offline
    945: Fault.LOST,  # files or memory are missing
    952: Fault.LOST,  # in transition
    976: Fault.LOST,  # availability group: this replica takes no queries
    978: Fault.LOST,  # availability group: this replica takes only connections with the intent to read
    979: Fault.LOST,  # availability group: the same, for another reason
    982: Fault.LOST,  # availability group: no secondary takes this connection
    983: Fault.LOST,  # availability group: the replica is resolving
    988: Fault.LOST,  # availability group: no quorum of nodes
    3906: Fault.LOST,  # read-only: this server became a secondary
    3908: Fault.LOST,  # damaged or in emergency mode: no transaction begins
    4060: Fault.LOST,  # cannot open the database of the login: during a fail-over; a wrong name looks the same
    3971: Fault.LOST,  # the transaction could not be resumed
    4064: Fault.LOST,  # cannot open the login's default database
    4221: Fault.LOST,  # a secondary waits for row versions
    8179: Fault.LOST,  # no such prepared statement: the session is another one
    9001: Fault.LOST,  # the log is not available
    17065: Fault.LOST,  # an assertion of the server failed
    17066: Fault.LOST,  # the same
    17067: Fault.LOST,  # the same
    22225: Fault.LOST,  # Azure: an error of its own, to be tried again, as are those up to 22493
    22226: Fault.LOST,
    22355: Fault.LOST,
    22358: Fault.LOST,
    22427: Fault.LOST,
    22430: Fault.LOST,  # Azure: the database is shutting down
    22491: Fault.LOST,
    22493: Fault.LOST,
    40106: Fault.LOST,  # Azure: an internal error, to be tried again
    40143: Fault.LOST,  # Azure: the process that serves the database failed over
    40197: Fault.LOST,  # Azure: an error in the service: upgrade, hardware, fail-over
    40540: Fault.LOST,  # Azure: the transaction was ended by a reconfiguration
    40613: Fault.LOST,  # Azure: not available now; also a serverless database that resumes
    40623: Fault.LOST,  # Azure: the login of this connection is no longer valid, log in again
    40671: Fault.LOST,  # Azure: a gateway and the service do not reach each other
    41614: Fault.LOST,  # Azure: the fail-over of a replica is under way, as are the next two
    41619: Fault.LOST,
    41640: Fault.LOST,
    42108: Fault.LOST,  # Azure: paused
    42109: Fault.LOST,  # Azure: warming up
    45156: Fault.LOST,  # Azure: a management operation is under way, as are the next two
    45157: Fault.LOST,
    45161: Fault.LOST,
    49510: Fault.LOST,  # Azure: the server is busy with such an operation
    49802: Fault.LOST,  # Azure: not available at the moment
    # The server or the session goes away.
    596: Fault.LOST,  # the session is being killed
    6005: Fault.LOST,  # shutting down
    17142: Fault.LOST,  # paused
    18401: Fault.LOST,  # login refused while the server upgrades itself
    18461: Fault.LOST,  # login refused while only one administrator may connect
    18451: Fault.LOST,  # login refused while only administrators may connect
    # The network; Windows' numbers, which the driver gives on every platform.
    20: Fault.LOST,  # no encryption: said by a gateway in the middle of a fail-over
    64: Fault.LOST,  # the connection broke during the login
    121: Fault.LOST,  # the semaphore time-out period has expired
    203: Fault.LOST,  # the connection broke before the login
    233: Fault.LOST,  # nobody at the other end of the connection
    258: Fault.LOST,  # no answer in time
    997: Fault.LOST,  # the connection broke during the login
    10053: Fault.LOST,  # aborted by this host
    10054: Fault.LOST,  # reset by the other end
    10060: Fault.LOST,  # no answer in time
    10061: Fault.LOST,  # refused
    11001: Fault.LOST,  # no such host, which a resolver that is away says of every host
    # What can never succeed as it is: who is not let in, although some lists try again.
    18452: Fault.FATAL,  # login failed: of a domain that is not trusted
    18456: Fault.FATAL,  # login failed: a wrong password or user
    18470: Fault.FATAL,  # login failed: the account is disabled
    18486: Fault.FATAL,  # login failed: the account is locked
    18487: Fault.FATAL,  # login failed: the password has expired
    18488: Fault.FATAL,  # login failed: the password must be changed
    40532: Fault.FATAL,  # Azure: no such server for this login
    40615: Fault.FATAL,  # Azure: the firewall refuses this address
    40914: Fault.FATAL,  # Azure: the firewall refuses this virtual network
    # Rights.
    229: Fault.FATAL,  # denied on an object
    230: Fault.FATAL,  # denied on a column
    262: Fault.FATAL,  # denied in a database
    297: Fault.FATAL,  # no permission for this action
    300: Fault.FATAL,  # denied on the server
    916: Fault.FATAL,  # this user may not use the database
    1088: Fault.FATAL,  # no such object, or no rights on it
    # Syntax, and what is not there.
    102: Fault.FATAL,  # syntax
    105: Fault.FATAL,  # a quotation mark
    137: Fault.FATAL,  # an undeclared variable
    156: Fault.FATAL,  # a keyword
    170: Fault.FATAL,  # syntax
    195: Fault.FATAL,  # no such function
    207: Fault.FATAL,  # no such column
    208: Fault.FATAL,  # no such object; OPENJSON below compatibility level 130
    209: Fault.FATAL,  # an ambiguous column
    213: Fault.FATAL,  # another number of columns
    334: Fault.FATAL,  # a trigger forbids OUTPUT
    1934: Fault.FATAL,  # a SET option that filtered indexes need
    2812: Fault.FATAL,  # no such procedure
    4104: Fault.FATAL,  # a name that cannot be bound
    8144: Fault.FATAL,  # too many arguments
    8178: Fault.FATAL,  # a parameter is missing
    13609: Fault.FATAL,  # no JSON
}

# Where the number is none of these, or zero because the driver itself speaks; the longest prefix
# decides.
STATES = {
    "08": Fault.LOST,
    "08007": Fault.AMBIGUOUS,  # the connection failed during a transaction
    "40001": Fault.DEADLOCK,
    "40003": Fault.AMBIGUOUS,  # statement completion unknown
    "HYT00": Fault.AMBIGUOUS,  # statement time-out: the cancellation may have met a commit on its way
    "HYT01": Fault.LOST,  # connection time-out
    "IMC": Fault.LOST,  # the driver's own reconnection failed
    # 42000 says nothing: the driver gives it to most of the server's numbers, those of a fail-over
    # too.
    "22": Fault.REFUSED,  # a value that its type does not take
    "23000": Fault.REFUSED,  # a constraint
    "42S": Fault.FATAL,  # a table, an index or a column is missing, or there already
    "FA005": Fault.FATAL,  # an access token beside another kind of login
    "IM002": Fault.FATAL,  # no such data source or driver
    "IM003": Fault.FATAL,  # the driver cannot be loaded
}

# pyodbc writes "[state] text (number) (SQLFunction)" and, for each further message, "; [state] text
# (number)".
_NUMBER = re.compile(r"\((-?\d{1,10})\)(?: \(SQL\w+\))?(?=; \[|$)")


def is_refused_login(state: str, text: str) -> bool:
    """Return whether the server was reached and does not let this login in, or this token."""
    return state == "28000" and "18456" in _NUMBER.findall(text)


def is_no_driver(state: str, text: str) -> bool:
    """Return whether the driver manager could not find or load the driver that it was to take."""
    # unixODBC says the second as a warning.
    return state in ("IM002", "IM003") or (state == "01000" and "[Driver Manager]Can't open lib" in text)


def fault_of(state: str, text: str) -> Fault:
    """Classify by the first number that is known, then by SQLSTATE.

    What neither table has may be a lost connection: the server, or a gateway, said something that
    nobody foresaw.
    """
    for number in _NUMBER.findall(text):
        fault = FAULTS.get(int(number))
        if fault is not None:
            return fault
    return by_state(STATES, state)
