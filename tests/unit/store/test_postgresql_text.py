"""PostgreSQL's combined statements are made of the blocks that other databases run one by one."""

import re

from celery_sqlbeat.store.sql.dialects.postgresql_text import AT_ONCE, FINISH, START, with_chains
from celery_sqlbeat.store.sql.session import load

CHAINS = with_chains()


def test_the_blocks_themselves_are_all_there() -> None:
    assert {name: block for name, block in CHAINS.items() if name not in AT_ONCE} == load("postgresql")


def test_a_start_at_once_takes_what_its_first_block_takes_and_gives_what_its_last_gives() -> None:
    assert CHAINS[START].columns == CHAINS["start_jobs"].columns
    assert CHAINS[START].types == CHAINS["start_jobs"].types
    assert returned(CHAINS[START].text) == returned(CHAINS["start_runs"].text)


def test_a_finish_at_once_takes_the_job_and_what_the_run_needs() -> None:
    columns = list(CHAINS["close_runs"].columns)
    columns.remove("released")
    assert CHAINS[FINISH].columns == ("job_id", *columns)
    assert returned(CHAINS[FINISH].text).startswith(returned(CHAINS["close_runs"].text))
    assert plain(CHAINS[FINISH].text).endswith("SELECT RunId FROM closed")


def test_every_condition_of_the_blocks_is_in_what_is_made_of_them() -> None:
    for name, parts in ((START, ("start_jobs", "start_runs")), (FINISH, ("release_jobs", "close_runs"))):
        for part in parts:
            condition = CHAINS[part].text.rpartition("UPDATE")[2]
            assert plain(condition) in plain(CHAINS[name].text)
    assert CHAINS[START].text.count(":rows") == CHAINS[FINISH].text.count(":rows") == 1


def returned(text: str) -> str:
    return plain(text.rpartition("RETURNING")[2])


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"--.*", "", text)).strip()
