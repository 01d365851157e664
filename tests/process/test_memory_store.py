"""A beat and a worker in one process, whose store is in its memory."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.beats import wait_for

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"
SHOP = """
from celery import Celery

app = Celery("shop", broker="memory://")
app.conf.update(
    sqlbeat_database_url="memory://",
    sqlbeat_poll_interval=2,
    beat_schedule={"tick": {"task": "shop.tick", "schedule": 1.0}},
    worker_hijack_root_logger=False,
)


@app.task(name="shop.tick")
def tick():
    print("tick", flush=True)
"""
SAYS = "import logging\nlogging.basicConfig(level=logging.INFO)\n"


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_the_program_of_the_page_fires_and_runs_with_leases(tmp_path: Path, pool: str) -> None:
    """Where the worker kept no leases, its beat would say so."""
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "program.py").write_text(SAYS + block[1].replace('pool="threads"', f'pool="{pool}"'))
    log = tmp_path / "log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-W", "ignore", "program.py"], cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        wait_for(lambda: log.read_text().count("redirected:tick") >= 3, 60, log.read_text)
        program.terminate()
        assert program.wait(30) == 0, log.read_text()
    finally:
        program.kill()
        program.wait()
    assert "memory:// is in the memory of this process" in log.read_text()
    assert "fired and forgotten" not in log.read_text()
