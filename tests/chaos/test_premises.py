"""A storm leaves nothing behind, and the next one removes what a killed one left."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.chaos.premises import premises


def test_a_folder_is_removed_with_its_storm_and_after_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    deserted, others = tmp_path / f"sqlbeat_storm_{gone.pid}_x", tmp_path / f"sqlbeat_storm_{os.getppid()}_x"
    for folder in (deserted, others):
        (folder / "data").mkdir(parents=True)
    with premises() as made:
        assert not deserted.exists() and others.exists()
        assert Path(tempfile.mkdtemp()).parent == made
    assert not made.exists() and tempfile.gettempdir() == str(tmp_path)
