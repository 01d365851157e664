"""Find the server that can be written to, and talk to it: one host, several, Sentinel, Cluster.

All keys of a namespace are in one slot, so that also of a cluster one node is enough.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoScriptError

from celery_sqlbeat import environment
from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import READ_ONLY
from celery_sqlbeat.store.redis.faults import ElsewhereOnly, NotReplicated, ReplicaOnly, moved_to

PORT, SENTINEL_PORT = 6379, 26379
_MOST_MOVES = 3  # from node to node of a cluster that says where a slot is
_SPARE = 1.0  # seconds; by the time-out itself the server should have answered
_REFUSED = re.compile("ACL failure|NOPERM|no permission|executing the script can't")
_TOO_OLD = re.compile("syntax error|unknown (redis )?command", re.IGNORECASE)

Address = tuple[str, int]


class Script(NamedTuple):
    """A script, and the name by which the server keeps it."""

    text: bytes
    sha: str


@cache
def script(name: str) -> Script:
    """Return a script of this package."""
    text = Path(__file__).with_name(f"{name}.lua").read_bytes()
    return Script(text, hashlib.sha1(text).hexdigest())  # noqa: S324 - Redis names scripts so


def _packed(words: Sequence[Any]) -> bytes:
    """Return a command as it is sent; redis-py takes four times as long for hundreds of keys."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


class RedisSession:
    """One connection to a server that can be written to. It is used by one thread at a time."""

    def __init__(self, connection: Any, address: Address) -> None:
        self._connection = connection
        self.address = address
        self._id = environment.random_hex(8)
        self._questions = 0

    def question(self) -> tuple[str, int]:
        """Return the name and number under which the answer to the next write is kept."""
        self._questions += 1
        return self._id, self._questions

    def command(self, *words: Any) -> Any:
        """Send a command and return the answer."""
        self._connection.send_packed_command([_packed(words)])
        return self._connection.read_response()

    def run(self, name: str, keys: Sequence[str | bytes], arguments: Sequence[Any]) -> Any:
        """Run a script, which the server may have forgotten."""
        wanted = script(name)
        try:
            return self.command("EVALSHA", wanted.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            self.command("SCRIPT", "LOAD", wanted.text)
            return self.command("EVALSHA", wanted.sha, len(keys), *keys, *arguments)

    def wait(self, replicas: int, seconds: float) -> None:
        """Wait until so many replicas have what this connection has written."""
        arrived = self.command("WAIT", replicas, int(1000 * seconds))
        if arrived < replicas:
            raise NotReplicated(f"after {seconds:g} s {arrived} replicas of {replicas} have what was written")

    def close(self) -> None:
        """Close the connection; never raises."""
        self._connection.disconnect()


class Server:
    """The server of an address that has some keys and can be written to."""

    def __init__(self, url: DatabaseUrl, probed_keys: Sequence[str], statement_timeout: float) -> None:
        self._url = url
        self._probed_keys = probed_keys
        self._timeout = statement_timeout
        self._known: Address | None = None  # the node of a cluster that had our keys

    def connect(self) -> RedisSession:
        """Open a session to the first server that can be written to, or raise redis-py's error."""
        failure: redis.RedisError | None = None
        for place in self._addresses():
            try:
                return self._session(place, _MOST_MOVES)
            except redis.RedisError as error:
                failure = failure or error
        raise failure or redis.ConnectionError(f"no host in {self._url}")

    def _session(self, address: Address, moves: int) -> RedisSession:
        session = RedisSession(self._open(address, self._login()), address)
        try:
            self._probe(session)
        except ElsewhereOnly as elsewhere:
            session.close()
            if moves == 0:
                raise
            session = self._session((elsewhere.host, elsewhere.port), moves - 1)
            self._known = session.address
        except BaseException:
            session.close()
            raise
        return session

    def _probe(self, session: RedisSession) -> None:
        """Refuse a server that is not ours to write to, before anything is written in part.

        A script that is not allowed one of its commands would stop in the middle.
        """
        host, port = session.address
        try:
            failed = [_text(piece) for piece in session.run("probe", self._probed_keys, ())]
        except redis.ResponseError as error:
            raise moved_to(error, host) or error from error
        errors = dict(zip(failed[::2], failed[1::2], strict=True))
        if any("READONLY" in error for error in errors.values()):
            raise ReplicaOnly(f"the server at {host}:{port} {READ_ONLY}: it is a replica")
        if refused := [name for name, error in errors.items() if _REFUSED.search(error)]:
            user = self._url.user or "default"
            raise StoreError(
                f"the user {user!r} of Redis may not run {', '.join(refused)} on the keys of this namespace: "
                "docs/redis.md has the ACL that it needs"
            )
        if old := [error for error in errors.values() if _TOO_OLD.search(error)]:
            raise StoreError(f"the server at {host}:{port} is too old, use Redis 6.2 or later, or Valkey: {old[0]}")

    def _addresses(self) -> Iterator[Address]:
        if "sentinel" in self._url.options:
            yield from self._of_sentinels(self._url.options["sentinel"])
            return
        if self._known is not None:
            yield self._known
        for host, port in self._url.hosts or (("", None),):
            yield host or "localhost", port or PORT

    def _of_sentinels(self, name: str) -> Iterator[Address]:
        """Yield what the sentinels say, one after the other."""
        failure: redis.RedisError | None = None
        login = {
            "username": self._url.options.get("sentinel_username"),
            "password": self._url.options.get("sentinel_password"),
        }
        for host, port in self._url.hosts or (("", None),):
            sentinel = self._open((host or "localhost", port or SENTINEL_PORT), login)
            try:
                sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
                answer = sentinel.read_response()
            except redis.RedisError as error:
                failure = failure or error
                continue
            finally:
                sentinel.disconnect()
            if answer:
                yield _text(answer[0]), int(answer[1])
            else:
                failure = failure or redis.ConnectionError(f"the sentinel at {host} knows no primary named {name}")
        if failure is not None:
            raise failure

    def _login(self) -> dict[str, Any]:
        return {"username": self._url.user or None, "password": self._url.password, "db": int(self._url.name or 0)}

    def _open(self, address: Address, login: dict[str, Any]) -> Any:
        """Make a connection; it is opened by its first command, and never tries again by itself."""
        options: dict[str, Any] = {
            "host": address[0],
            "port": address[1],
            "socket_timeout": self._timeout + _SPARE,
            "socket_connect_timeout": max(1.0, self._timeout),
            "socket_keepalive": True,
            **login,
        }
        if not self._url.text.lower().startswith("rediss:"):
            return redis.Connection(**options)  # type: ignore[no-untyped-call]
        options |= {key: value for key, value in self._url.options.items() if key.startswith("ssl_")}
        reqs = options.setdefault("ssl_cert_reqs", "required")
        checks_host = options.get("ssl_check_hostname", "true") == "true" and reqs != "none"
        return redis.SSLConnection(**{**options, "ssl_check_hostname": checks_host})


def _text(answer: str | bytes) -> str:
    return answer if isinstance(answer, str) else answer.decode(errors="replace")
