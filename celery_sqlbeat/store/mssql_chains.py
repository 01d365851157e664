"""What other databases do in a transaction of several blocks, as one batch: one round trip, and no process can be
stopped in the middle of it with its rows locked.

Made of the blocks themselves, so that each condition is written once. A later block reads what the first one returned.
"""

import re
from collections.abc import Mapping
from functools import cache

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.statements import Block, load

START, FINISH = "start_at_once", "finish_at_once"
AT_ONCE = frozenset({START, FINISH})

_SOURCE = re.compile(r"FROM OPENJSON\(@rows\) WITH \(\n.*?\n\) AS p\n", re.DOTALL)
_DECLARED = re.compile(r"^DECLARE @(\w+) .*?;\n", re.DOTALL | re.MULTILINE)


@cache
def with_chains() -> Mapping[str, Block]:
    """All blocks for SQL Server, with those that are made of several."""
    blocks = load("mssql")
    return {**blocks, START: _start(blocks), FINISH: _finish(blocks)}


def _start(blocks: Mapping[str, Block]) -> Block:
    """start_jobs, then start_runs with what it won. Its rows are those of start_jobs."""
    jobs, runs = blocks["start_jobs"], blocks["start_runs"]
    won, _ = _cut(jobs.text)
    begin, answer = _cut(runs.text.replace("@started", "@begun"))
    given = ", ".join(f"g.{name}" for name in jobs.columns)
    source = f"""FROM (
    SELECT {given}, s.Fence AS job_fence, s.Published AS published
    FROM {_openjson(dict(zip(jobs.columns, jobs.types, strict=True)))} AS g
    LEFT OUTER JOIN @started AS s ON s.RunId = g.run_id
) AS p
"""  # noqa: S608 - made of our own blocks
    text = _transaction(won, _fed(_continued(begin, won), source), answer)
    return Block(START, text, jobs.columns, jobs.types, jobs.instants)


def _finish(blocks: Mapping[str, Block]) -> Block:
    """release_jobs, then close_runs, then bump_changes where a job became due at an instant that nobody foresaw.

    Its rows are those of close_runs without `released`, and the job before them.
    """
    jobs, runs, bump = blocks["release_jobs"], blocks["close_runs"], blocks["bump_changes"]
    kinds = dict(zip((*jobs.columns, *runs.columns), (*jobs.types, *runs.types), strict=True))
    columns = {name: kinds[name] for name in ("job_id", *(name for name in runs.columns if name != "released"))}
    release, released = _cut(jobs.text)
    close, answer = _cut(runs.text)
    of_jobs = _openjson(columns)
    of_runs = ", ".join(f"g.{name}" for name in columns if name != "job_id")
    source = f"""FROM (
    SELECT {of_runs}, CASE WHEN f.Id IS NULL THEN 0 ELSE 1 END AS released
    FROM {of_jobs} AS g
    LEFT OUTER JOIN @released AS f ON f.Id = g.job_id
) AS p
"""  # noqa: S608 - made of our own blocks
    release = _fed(release, f"FROM {of_jobs} AS p\n")
    tell = f"IF EXISTS (SELECT 1 FROM ({released}) AS u WHERE u.Unforeseen = 1)\nBEGIN\n{bump.text};\nEND"  # noqa: S608
    text = _transaction(release, f"{_fed(_continued(close, release), source)}\n\n{tell};", answer)
    return Block(FINISH, text, tuple(columns), tuple(columns.values()), ())


def _transaction(first: str, second: str, answer: str) -> str:
    """Committed before the answer is sent, so that nobody who does not read it keeps the locks."""
    declared, work = _head(first)
    return f"{declared}\nBEGIN TRANSACTION;\n\n{work}\n\n{second}\n\nCOMMIT TRANSACTION;\n\n{answer}"


def _cut(text: str) -> tuple[str, str]:
    """A block without its last statement, which is its answer; and that."""
    work, found, answer = text.rpartition(";\n\nSELECT")
    if not found:
        raise StoreError("a block does not end with its answer any more")
    return work + ";", "SELECT" + answer


def _head(text: str) -> tuple[str, str]:
    """The clock and whatever else is declared before a block's first statement; and the rest."""
    end = 0
    while found := _DECLARED.match(text, end):
        end = found.end()
    return text[:end], text[end:].strip()


def _continued(text: str, before: str) -> str:
    """A block behind another one in the same batch, where what that one declared is there already."""
    there = {found[1] for found in _DECLARED.finditer(before)}
    return _DECLARED.sub(lambda found: "" if found[1] in there else found[0], text).strip()


def _fed(text: str, source: str) -> str:
    """A block whose rows come from elsewhere."""
    fed, times = _SOURCE.subn(lambda _: source, text)
    if times != 1:
        raise StoreError("a block does not read its rows any more as the others do")
    return fed


def _openjson(columns: Mapping[str, str]) -> str:
    read = ",\n".join(f"    {name} {kind} '$[{at}]'" for at, (name, kind) in enumerate(columns.items()))
    return f"OPENJSON(@rows) WITH (\n{read}\n)"
