"""Keep the rows of one namespace on a Redis server.

A row is one key, its version before its JSON; an index is one sorted set. What a change writes is
compared and written by one script, which nothing comes between.
"""

import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import redis

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.store.faults import UNCERTAIN, Breaker
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Entries, Found, Key, Row, Scan, Snapshot, Versioned
from celery_sqlbeat.store.patience import Failure, Patience
from celery_sqlbeat.store.pool import SessionPool
from celery_sqlbeat.store.redis.connection import RedisSession, Server
from celery_sqlbeat.store.redis.faults import fault_of, told

T = TypeVar("T")

PREFIX = "sqlbeat:"
_MOST_READ = 2000  # rows that one script reads, so that others wait for a few milliseconds at most
_MOST_CHANGES = 250  # that one script writes
_MOST_CHARACTERS = 4 << 20  # of the rows that one script writes
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # made once: half the time of dumps
_DECODE = json.JSONDecoder().decode
_YES = ord("1")  # in the answer to a write
_DIGITS = 16  # of a version, which is never before the microseconds since 1970


class RedisPlace:
    """One namespace on the server of an address. It is used by any number of threads.

    `replicas`: how many must have a write before it counts. `clock`: what a test makes of the
    server's microseconds.
    """

    def __init__(
        self,
        url: DatabaseUrl,
        namespace: str,
        entries: Entries,
        statement_timeout: float = 5.0,
        breaker: Breaker | None = None,
        replicas: int = 0,
        clock: Callable[[int], int] = lambda now: now,
    ) -> None:
        self._url = url
        self._entries = entries
        self._timeout = statement_timeout
        self._replicas = replicas
        self._clock = clock
        # No brace of a namespace may end the part of a key that decides about its slot.
        self.prefix = f"{PREFIX}{{{urllib.parse.quote(namespace, safe='')}}}:"
        self._server = Server(url, [self.prefix + "probe:row", self.prefix + "probe:index"], statement_timeout)
        self._pool: SessionPool[RedisSession] = SessionPool(self._server.connect)
        self._patience = Patience(self._explain, statement_timeout, breaker)

    def read(self, keys: Sequence[Key] = (), scans: Sequence[Scan] = ()) -> Snapshot:
        """Read rows and indexes, the clock and the counter."""
        return self._run(lambda session: self._read(session, keys, scans))

    def write(self, changes: Sequence[Change]) -> list[bool]:
        """Write changes in this order; return which of them were written.

        A row that becomes what it was is only compared. A try whose answer was lost is made again
        under the same name and number, and gets the same answer.
        """
        is_done: list[bool] = []
        for part in self._parts(changes):
            is_done += self._write(part)
        return is_done

    def ask(self, *words: Any) -> Any:
        """Send a command that concerns the server, and not our rows."""
        return self._run(lambda session: session.command(*words))

    def forget(self) -> None:
        """Forget the counter and the sequence, which goes on with the clock."""
        self.ask("DEL", self.prefix + "counter", self.prefix + "sequence")

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _read(self, session: RedisSession, keys: Sequence[Key], scans: Sequence[Scan]) -> Snapshot:
        counter_key = self.prefix + "counter"
        arguments: list[Any] = [min(len(keys), _MOST_READ)]
        for scan in scans:
            arguments += _scan_words(scan)
        row_keys = [self._row_key(key) for key in keys]
        index_keys = [self._index_key(scan.index_name) for scan in scans]
        seconds, micros, counter, texts, answers = session.run(
            "read", [counter_key, *row_keys[:_MOST_READ], *index_keys], arguments
        )
        for first in range(_MOST_READ, len(keys), _MOST_READ):
            part = row_keys[first : first + _MOST_READ]
            texts += session.run("read", [counter_key, *part], [len(part)])[3]
        return Snapshot(
            now=self._clock(int(seconds) * 1_000_000 + int(micros)),
            counter=int(counter),
            rows={key: _row_of(text) for key, text in zip(keys, texts, strict=True)},
            scanned=[_found(answer) for answer in answers],
        )

    def _write(self, changes: Sequence[tuple[Change, Mapping[Key, str]]]) -> list[bool]:
        positions: dict[str, int] = {}
        words: list[Any] = []

        def position(key: str) -> int:
            return positions.setdefault(key, 4 + len(positions))

        for change, texts in changes:
            rows: list[Any] = []
            entries: list[Any] = []
            for key, (before, after) in change.rows.items():
                version = f"{before.version:0{_DIGITS}d}" if before.version else ""
                is_same = before.row == after
                text = "=" if is_same else texts.get(key, "-")
                rows += (position(self._row_key(key)), version, text)
                if not is_same:
                    for name, score in self._moves(key, before.row, after):
                        entries += (position(self._index_key(name)), key[1], str(score))
            words += (int(change.is_news), len(rows) // 3, len(entries) // 3, *rows, *entries)
        question: tuple[str, int] | None = None

        def once(session: RedisSession) -> list[bool]:
            nonlocal question
            if question is None:
                question = session.question()
            name, number = question
            own = [self.prefix + "sequence", self.prefix + "counter", f"{self.prefix}answer:{name}"]
            answer = session.run("write", [*own, *positions], [number, _ENCODE(words)])
            if self._replicas:
                session.wait(self._replicas, self._timeout)
            return [sign == _YES for sign in answer]

        return self._run(once)

    def _moves(self, key: Key, before: Row | None, after: Row | None) -> Iterator[tuple[str, int | str]]:
        """Yield the indexes in which a row has another score than before, "" where it leaves."""
        table, row_id = key
        old = {} if before is None else self._entries(table, row_id, before)
        new = {} if after is None else self._entries(table, row_id, after)
        for name in old:
            if name not in new:
                yield name, ""
        for name, score in new.items():
            if old.get(name) != score:
                yield name, score

    def _parts(self, changes: Sequence[Change]) -> Iterator[list[tuple[Change, Mapping[Key, str]]]]:
        """Yield changes with the texts of their rows, as many as one script may write."""
        part: list[tuple[Change, Mapping[Key, str]]] = []
        size = 0
        for change in changes:
            texts = {key: _ENCODE(row) for key, (_, row) in change.rows.items() if row is not None}
            own = sum(map(len, texts.values()))
            if part and (len(part) >= _MOST_CHANGES or size + own > _MOST_CHARACTERS):
                yield part
                part, size = [], 0
            part.append((change, texts))
            size += own
        if part:
            yield part

    def _row_key(self, key: Key) -> str:
        return f"{self.prefix}{key[0]}:{key[1]}"

    def _index_key(self, name: str) -> str:
        return f"{self.prefix}by:{name}"

    def _run(self, work: Callable[[RedisSession], T]) -> T:
        return self._patience.run(lambda: self._once(work))

    def _once(self, work: Callable[[RedisSession], T]) -> T:
        session: RedisSession | None = None
        try:
            session = self._pool.acquire()
            result = work(session)
        except BaseException as error:
            if session is not None:
                self._pool.discard(session)
            if not isinstance(error, redis.RedisError):
                raise
            fault = fault_of(error)
            raise Failure(fault, session is not None and fault in UNCERTAIN, error) from error
        self._pool.release(session)
        return result

    def _explain(self, error: BaseException) -> str:
        return self._url.mask(told(error))


def _scan_words(scan: Scan) -> tuple[Any, ...]:
    return (
        "-inf" if scan.low is None else scan.low,
        "+inf" if scan.high is None else scan.high,
        -1 if scan.limit is None else scan.limit,
        scan.after or "",
        int(scan.is_reversed),
        int(scan.only_count),
    )


def _found(answer: int | Sequence[Any]) -> Found:
    if isinstance(answer, int):
        return Found([], answer)
    ids = [(_decoded(name), int(float(score))) for name, score in zip(answer[::2], answer[1::2], strict=True)]
    return Found(ids, len(ids))


def _row_of(text: bytes | None) -> Versioned:
    return ABSENT if text is None else Versioned(int(text[:_DIGITS]), _DECODE(_decoded(text[_DIGITS:])))


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogatepass")
