"""What other databases do in a transaction of several blocks, as one statement: one round trip, no BEGIN, no COMMIT.

Made of the blocks themselves, so that each condition is written once. A later block reads what the first one returned.
"""

from collections.abc import Mapping
from functools import cache

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.statements import Block, load

START, FINISH, RELEASE = "start_at_once", "finish_at_once", "release_at_once"
AT_ONCE = frozenset({START, FINISH, RELEASE})


@cache
def with_chains() -> Mapping[str, Block]:
    """All blocks for PostgreSQL, with those that are made of several."""
    blocks = load("postgresql")
    return {**blocks, START: _start(blocks), **_finish(blocks)}


def _start(blocks: Mapping[str, Block]) -> Block:
    """start_jobs, then start_runs with what it won. Its rows are those of start_jobs."""
    jobs, runs = blocks["start_jobs"], blocks["start_runs"]
    text = f"""
        WITH given ({_names(jobs)}) AS (:rows),
        won AS ({_fed(jobs)}),
        {_table(runs)} AS (
            SELECT {_names(jobs, "g.")}, won.Fence, won.Published
            FROM given AS g LEFT JOIN won ON won.RunId = g.run_id
        )
        {_body(runs)}
    """  # noqa: S608 - made of our own blocks
    return Block(START, text, jobs.columns, jobs.types, jobs.instants)


def _finish(blocks: Mapping[str, Block]) -> dict[str, Block]:
    """release_jobs, then close_runs, then bump_changes where a job became due at an instant that nobody foresaw.

    Its rows are those of close_runs without `released`, and the job before them. A beat is told of the jobs that it
    has freed as well: an overlapping run that has begun goes on by itself.
    """
    jobs, runs, bump = blocks["release_jobs"], blocks["close_runs"], blocks["bump_changes"]
    kinds = dict(zip((*jobs.columns, *runs.columns), (*jobs.types, *runs.types), strict=True))
    columns = ("job_id", *(name for name in runs.columns if name != "released"))
    of_runs = ", ".join(
        "CASE WHEN g.job_id IN (SELECT Id FROM released) THEN 1 ELSE 0 END" if name == "released" else f"g.{name}"
        for name in runs.columns
    )
    is_unforeseen = "EXISTS (SELECT 1 FROM released WHERE Unforeseen = 1)"
    rest = f"""
        released AS ({_fed(jobs)}),
        bumped AS ({_replaced(bump.text, "VALUES (:namespace, 1)", f"SELECT :namespace, 1 WHERE {is_unforeseen}")}),
        {_table(runs)} AS (SELECT {of_runs} FROM given AS g)"""  # noqa: S608 - made of our own blocks
    names = ", ".join(columns)
    # A beat passes by what somebody keeps locked; a worker's outcomes wait for their rows.
    free = _replaced(_body(blocks["lock_claims"]), "SELECT r.RunId", "SELECT p.*")
    texts = {
        FINISH: f"WITH given ({names}) AS (:rows), {rest} {_body(runs)}",
        RELEASE: f"""
        WITH asked ({names}) AS (:rows),
        given AS MATERIALIZED (WITH p AS (SELECT * FROM asked) {free}),
        {rest},
        closed AS ({_body(runs)})
        SELECT RunId FROM closed
        UNION ALL
        SELECT Id FROM released""",  # noqa: S608
    }
    types = tuple(kinds[name] for name in columns)
    return {name: Block(name, text, columns, types, ()) for name, text in texts.items()}


def _names(block: Block, prefix: str = "") -> str:
    return ", ".join(prefix + name for name in block.columns)


def _table(block: Block) -> str:
    return f"p ({_names(block)})"


def _fed(block: Block) -> str:
    """The block with the rows that are given to all."""
    return _replaced(block.text, ":rows", f"SELECT {_names(block)} FROM given")  # noqa: S608 - columns of our own


def _body(block: Block) -> str:
    """The block without its rows, which come from elsewhere."""
    _, rows, body = block.text.partition(" AS (:rows)")
    if not rows:
        raise StoreError(f"{block.name} does not begin with its rows any more")
    return body.strip()


def _replaced(text: str, old: str, new: str) -> str:
    before, found, after = text.partition(old)
    if not found:
        raise StoreError(f"{old!r} is no part of a block any more")
    return before + new + after
