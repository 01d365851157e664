"""A forked child has marks of its own."""

import subprocess
import sys


def test_all_workers_of_a_process_have_the_same_marks_and_those_of_a_child_their_own() -> None:
    subprocess.run([sys.executable, "-c", FORKS], check=True)


FORKS = """
import os
from celery_sqlbeat.worker.task import flags as running

marks = running.share()
assert running.share() is marks
child = os.fork()
if not child:
    os._exit(running.share() is marks)
assert os.waitpid(child, 0)[1] == 0
assert running.share() is marks
"""
