"""What users install is the wheel, so the wheel is tried here.

Built, installed into an empty environment, run.
"""

import importlib.metadata
import os
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

import celery_sqlbeat

ROOT = Path(__file__).parents[2]
DATABASES = sorted({path.parts[-3] for path in ROOT.glob("sql/*/migrations/*.sql")})
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SQLBEAT_", "PYTHON", "CELERY_"))
    }
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=clean | environ, capture_output=True, text=True, timeout=600, check=False)


def must(*command: object, cwd: Path, **environ: str) -> str:
    done = run(*command, cwd=cwd, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the source distribution and its wheel, made as a release makes them.

    A release has made them already: it names the folder, so that what is published is what was
    tested.
    """
    if released := os.environ.get("SQLBEAT_TEST_DIST"):
        return ROOT / released
    folder = tmp_path_factory.mktemp("dist")
    must(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a new environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    must(sys.executable, "-m", "venv", folder, cwd=folder)
    binaries = folder / "bin"
    must(binaries / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return binaries


def test_the_extra_redis_brings_what_the_transport_imports(wheel: Path, tmp_path: Path) -> None:
    """A worker on Redis dies at its start where a module of the transport is missing."""
    must(sys.executable, "-m", "venv", tmp_path / "with-redis", cwd=tmp_path)
    python = tmp_path / "with-redis" / "bin" / "python"
    must(python, "-m", "pip", "install", "--quiet", f"{wheel}[redis]", cwd=tmp_path)
    code = "from kombu import Connection; print(Connection('redis://').transport.driver_type)"
    assert must(python, "-c", code, cwd=tmp_path).strip() == "redis"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return an empty folder with the smallest app."""
    (tmp_path / "demo.py").write_text("from celery import Celery\n\napp = Celery('demo', broker='memory://')\n")
    return tmp_path


def test_the_wheel_holds_every_sql_file_the_types_and_the_entry_points(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {f"celery_sqlbeat/{path.relative_to(ROOT)}" for path in (ROOT / "sql").rglob("*.sql")}
    sources = {name for name in sources if "/sql/source/" not in name}
    assert sources
    assert sources <= names
    assert "celery_sqlbeat/py.typed" in names
    scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / "celery_sqlbeat").rglob("*.lua")}
    assert scripts
    assert scripts <= names
    assert "celery_sqlbeat/demo/example_project/demo.py" in names
    assert not {name for name in names if name.startswith("tests/")}
    (metadata,) = importlib.metadata.distributions(path=[str(wheel)])
    points = {(point.group, point.name): point.value for point in metadata.entry_points}
    assert points == {
        ("celery.commands", "sqlbeat"): "celery_sqlbeat.cli:sqlbeat",
        ("celery.beat_schedulers", "sqlbeat"): "celery_sqlbeat:Scheduler",
    }


def test_the_source_distribution_holds_what_its_tests_need(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    pages = {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert pages | {"Makefile", "pyproject.toml", "constraints-dev.txt", "tests/conftest.py"} <= names
    assert any(name.startswith("sql/sqlite/") for name in names)


def test_init_creates_the_tables_of_the_embedded_database(environment: Path, shop: Path) -> None:
    said = must(environment / "celery", "-A", "demo", "sqlbeat", "init", cwd=shop)
    assert "sqlite:///sqlbeat.db" in said
    with closing(sqlite3.connect(shop / "sqlbeat.db")) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(Jobs)")}
    assert {"Id", "JobName", "NextRunTime", "LastRunTime", "LockedBy", "LockedAt", "LockTimeoutMinutes"} <= columns
    again = must(environment / "celery", "-A", "demo", "sqlbeat", "init", cwd=shop)
    assert "nothing to do" in again


@pytest.mark.parametrize("database", DATABASES)
def test_init_prints_the_script_of_any_database_without_its_driver(
    environment: Path, shop: Path, database: str
) -> None:
    url = "sqlite:///shop.db" if database == "sqlite" else f"{database}://nowhere/shop"
    script = must(environment / "celery", "-A", "demo", "sqlbeat", "init", "--sql", cwd=shop, SQLBEAT_DATABASE_URL=url)
    assert "JobRuns" in script
    assert not (shop / "shop.db").exists()


def test_the_script_of_the_embedded_database_creates_what_init_creates(environment: Path, shop: Path) -> None:
    must(environment / "celery", "-A", "demo", "sqlbeat", "init", cwd=shop)
    script = must(environment / "celery", "-A", "demo", "sqlbeat", "init", "--sql", cwd=shop)
    names = "SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY type, name"
    with closing(sqlite3.connect(shop / "sqlbeat.db")) as made, closing(sqlite3.connect(":memory:")) as printed:
        printed.executescript(script)
        assert printed.execute(names).fetchall() == made.execute(names).fetchall()


def test_a_missing_driver_is_one_line_with_its_remedy(environment: Path, shop: Path) -> None:
    url = "postgresql://user:s3kr1t@127.0.0.1:1/shop"
    done = run(environment / "celery", "-A", "demo", "sqlbeat", "init", cwd=shop, SQLBEAT_DATABASE_URL=url)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line]
    assert line.startswith("Error: ")
    assert "celery-sqlbeat[postgresql]" in line
    assert "s3kr1t" not in done.stdout + done.stderr


def test_the_demonstration_finds_its_project(environment: Path, shop: Path) -> None:
    code = "from celery_sqlbeat.cli.init import project_root; print(project_root())"
    root = Path(must(environment / "python", "-c", code, cwd=shop).strip())
    assert ROOT not in root.parents
    said = must(environment / "celery", "-A", "example_project", "sqlbeat", "init", cwd=shop, PYTHONPATH=str(root))
    assert "up to date" in said


def test_the_package_can_be_imported_and_is_typed(environment: Path, shop: Path) -> None:
    code = "import celery_sqlbeat; print(celery_sqlbeat.__version__, celery_sqlbeat.__file__)"
    said = must(environment / "python", "-c", code, cwd=shop)
    assert said.split()[0] == celery_sqlbeat.__version__
    assert str(ROOT) not in said
