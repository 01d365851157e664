"""`celery_sqlbeat.testing` in processes of its own: imported without pytest, and used by others."""

import subprocess
import sys
from pathlib import Path


def test_the_package_is_imported_without_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; from celery_sqlbeat import testing; print(testing.__all__)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_store_without_its_fixture_is_told_which_one(tmp_path: Path) -> None:
    text = "from celery_sqlbeat.testing import StoreContract\n\n\nclass TestMine(StoreContract):\n    pass\n"
    (tmp_path / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "no_requests_are_no_answers"]
    found = subprocess.run([*command, "test_mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "give a fixture make_store" in found.stdout
