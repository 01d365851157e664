"""Find pyodbc and Microsoft's ODBC driver, and write the connection string. Nothing here connects.

A missing part is reported with the one command that installs it.
"""

import ctypes
import importlib
import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.config.redaction import odbc_pairs
from celery_sqlbeat.errors import DriverMissing

# The types of ODBC by the numbers of its standard: to describe a statement needs no driver.
SQL_BIT = -7
SQL_BIGINT = -5
SQL_GUID = -11
SQL_INTEGER = 4
SQL_DOUBLE = 8
SQL_VARCHAR = 12
SQL_WCHAR = -8
SQL_WVARCHAR = -9
SQL_WLONGVARCHAR = -10

# By the ID or ID_LIKE of os-release: the driver manager, and Kerberos' library, which Microsoft's
# driver loads.
_COMMANDS = {
    "alpine": "apk add unixodbc krb5-libs",
    "debian": "apt-get install unixodbc libgssapi-krb5-2",
    "rhel": "dnf install unixODBC krb5-libs",
    "fedora": "dnf install unixODBC krb5-libs",
    "centos": "dnf install unixODBC krb5-libs",
    "suse": "zypper install unixODBC krb5",
    "opensuse": "zypper install unixODBC krb5",
    "arch": "pacman -S unixodbc krb5",
}


def load_pyodbc(import_module: Callable[[str], Any] = importlib.import_module) -> Any:
    """Return the module pyodbc, or a DriverMissing that names the command that helps."""
    try:
        pyodbc = import_module("pyodbc")
    except ModuleNotFoundError as error:
        raise DriverMissing('pyodbc is not installed: run pip install "celery-sqlbeat[mssql]"') from error
    except ImportError as error:
        raise DriverMissing(f"pyodbc cannot be loaded ({error}): run {system_command()}") from error
    # The driver manager would hand out connections that a child process inherited, or whose access
    # token has ended.
    pyodbc.pooling = False
    return pyodbc


def system_command(system: str | None = None, names: tuple[str, ...] | None = None) -> str:
    """Return the command that installs what pyodbc and the driver need of the system."""
    system = system or platform.system()
    if system == "Darwin":
        return "brew install unixodbc"
    if system == "Windows":
        return "winget install Microsoft.VCRedist.2015+.x64"
    return next((_COMMANDS[name] for name in names or release_names() if name in _COMMANDS), _COMMANDS["debian"])


def release_names() -> tuple[str, ...]:
    """Return the names of this Linux, the narrowest first."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    return (release.get("ID", ""), *release.get("ID_LIKE", "").split())


KNOWN = ("ODBC Driver 18 for SQL Server", "ODBC Driver 17 for SQL Server")  # the best first

# Whatever the string says: our own retries must not multiply with the driver's.
ALWAYS = {"ConnectRetryCount": "0"}
# What the string does not say itself. The certificate is verified; a connection that lost its other
# end is noticed about when a statement would time out.
DEFAULTS = {
    "Encrypt": "yes",
    "TrustServerCertificate": "no",
    "KeepAlive": "5",
    "KeepAliveInterval": "1",
    "APP": "celery-sqlbeat",
}
_WITH_A_DSN = ("APP",)  # the data source says the rest
_OURS = {"driver", "identity", "client_id", "tenant_id"} | {key.lower() for key in ALWAYS}

_PLAIN = re.compile(r"[\w.:,/\\+-]+", re.ASCII)  # needs no braces in a connection string
_LIBRARIES = {"Linux": "linux/*/{}/lib/libmsodbcsql-*.so.*", "Darwin": "macos/{}/lib/libmsodbcsql*.dylib"}
_MACHINES = {"aarch64": "arm64", "amd64": "x86_64"}
# The folders of the wheel by the ID or ID_LIKE of os-release; the rest of the world is like Debian.
_FAMILIES = {"alpine": "alpine", "rhel": "rhel", "fedora": "rhel", "centos": "rhel", "suse": "suse", "opensuse": "suse"}


def connection_string(url: DatabaseUrl, driver: Callable[[], str]) -> str:
    """Return the ODBC connection string of an address.

    `driver` is asked only where the address names none.
    """
    if url.odbc is not None:
        return _completed(url.odbc, driver)
    named = next((value for key, value in url.options.items() if key.lower() == "driver"), None)
    options = {key: value for key, value in url.options.items() if key.lower() not in _OURS}
    pairs = {
        **ALWAYS,
        "Driver": named or driver(),
        "Server": _server(url),
        "Database": url.name,
        "UID": url.user,
        "PWD": url.password,
        **options,
        **_missing(options),
    }
    return ";".join(f"{key}={_quoted(value)}" for key, value in pairs.items() if value is not None)


def find_driver(
    installed: Callable[[], Iterable[str]],
    system: str | None = None,
    machine: str | None = None,
    family: str | None = None,
    libraries: Callable[[], Path | None] = lambda: _shipped_libraries(),
    load: Callable[[str], object] = ctypes.CDLL,
) -> str:
    """Return the name of an installed driver, or the path of the one in mssql-python-odbc.

    That one is loaded here, as the driver manager will load it: of a library that it lacks, the
    driver manager would say only that the driver is not there.
    """
    names = set(installed())
    for name in KNOWN:
        if name in names:
            return name
    system = system or platform.system()
    machine = (machine or platform.machine()).lower()
    folder = libraries() if system in _LIBRARIES else None
    if folder is not None:
        pattern = _LIBRARIES[system].format(_MACHINES.get(machine, machine))
        wanted = family or _family()
        # The family of this system first; the others differ in what is beside the library, not in
        # the library.
        shipped = sorted(folder.glob(pattern), key=lambda path: (f"/{wanted}/" not in path.as_posix(), path))
        if shipped:
            try:
                load(str(shipped[0]))
            except OSError as error:
                raise DriverMissing(
                    f"Microsoft's ODBC driver cannot be loaded ({error}): run {system_command(system)}"
                ) from error
            return str(shipped[0])
    remedy = "winget install Microsoft.msodbcsql.18" if system == "Windows" else "pip install mssql-python-odbc"
    raise DriverMissing(f"Microsoft's ODBC driver for SQL Server is not installed: run {remedy}")


def _shipped_libraries() -> Path | None:
    try:
        import mssql_python_odbc
    except ImportError:
        return None
    return Path(mssql_python_odbc.get_libs_dir())


def _family() -> str:
    return next((_FAMILIES[name] for name in release_names() if name in _FAMILIES), "debian_ubuntu")


def _completed(string: str, driver: Callable[[], str]) -> str:
    """Complete a connection string: refuse what it may not say, add what it leaves open.

    Of two equal keywords ODBC takes the first.
    """
    given = [pair.key for pair in odbc_pairs(string) or ()]
    added = _missing(given)
    if {"dsn", "filedsn"} & set(given):
        added = {key: added[key] for key in _WITH_A_DSN if key in added}
    elif "driver" not in given:
        added["Driver"] = driver()
    completed = [f"{key}={_quoted(value)}" for key, value in added.items()]
    return ";".join([*(f"{key}={value}" for key, value in ALWAYS.items()), string.rstrip("; "), *completed])


def _missing(given: Iterable[str]) -> dict[str, str]:
    lower = {key.lower() for key in given}
    return {key: value for key, value in DEFAULTS.items() if key.lower() not in lower}


def _server(url: DatabaseUrl) -> str:
    host = f"tcp:{url.host}"
    if url.instance:
        host += f"\\{url.instance}"
    return host if url.port is None else f"{host},{url.port}"


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else "{" + value.replace("}", "}}") + "}"
