"""docker-compose.yml, the Dockerfile and what they stand on.

Of known shape, and fitting together.
"""

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.store.sql.dialects.mssql_driver import system_command
from tests.infra.compose_schema import COMPOSE
from tests.servers import required

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ONCE = {"database", "tables", "grants", "tests"}  # the others run on
EXAMPLE = ["celery", "-A", "example_project"]


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    """Return what .env says."""
    script = ROOT / "infra/compose/passwords.py"
    text = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=30).stdout
    return dict(re.findall(r"^(\w+)=(.+)$", text, re.MULTILINE))


def filled(text: str, environ: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: environ[match[1]], text)


def test_the_file_has_the_shape_of_a_compose_file() -> None:
    jsonschema.Draft202012Validator(COMPOSE).validate(FILE)


def test_a_field_in_the_wrong_place_is_refused() -> None:
    wrong = {**FILE, "services": {"beat": {**SERVICES["beat"], "replicas": 2}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(COMPOSE).validate(wrong)


def test_two_beats_and_two_workers_run_beside_their_servers() -> None:
    assert SERVICES.keys() == {"mssql", "rabbitmq", "redis", "beat", "worker", "flower"} | ONCE
    assert SERVICES["beat"]["deploy"]["replicas"] == SERVICES["worker"]["deploy"]["replicas"] == 2
    assert SERVICES["mssql"]["image"] == "mcr.microsoft.com/mssql/server:2022-latest"
    assert SERVICES["beat"]["command"][:6] == [*EXAMPLE, "beat", "--scheduler", "celery_sqlbeat.Scheduler"]
    assert SERVICES["worker"]["command"][:4] == [*EXAMPLE, "worker"]
    for name in ("beat", "worker"):
        assert "--pidfile=" in SERVICES[name]["command"]
        assert SERVICES[name]["healthcheck"]["test"] == ["CMD", *EXAMPLE, "sqlbeat", "health", "--here"]
    assert SERVICES["beat"]["environment"] == SERVICES["worker"]["environment"]


@pytest.mark.parametrize("name", SERVICES)
def test_what_runs_on_is_watched_and_what_runs_once_is_not_restarted(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) == ("restart" in service) == (name not in ONCE)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_what_can_become_so(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if other in ONCE else "service_healthy"
        assert how["condition"] == expected


def test_beats_and_workers_come_after_the_tables_and_the_grants() -> None:
    order = ["mssql", "database", "tables", "grants", "beat"]
    for before, after in itertools.pairwise(order):
        assert before in SERVICES[after]["depends_on"]
    assert SERVICES["tables"]["command"] == [*EXAMPLE, "sqlbeat", "init"]


def test_every_password_comes_from_the_file_that_make_up_writes(environ: dict[str, str]) -> None:
    named = set(re.findall(r"\$\{(\w+):\?run make up, which writes \.env\}", TEXT))
    assert named == environ.keys()
    assert "$" not in filled(TEXT, environ), "every variable says what to do where it is not set"
    assert re.findall(r"(?i)passw\w*: (?!\$\{)\S+", TEXT) == []
    assert re.search(r"^up: \.env\b", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {".env", ".env.part"} <= set((ROOT / ".gitignore").read_text().split())


def test_passwords_are_new_and_of_the_kinds_that_sql_server_wants(environ: dict[str, str]) -> None:
    assert len(set(environ.values())) == len(environ)
    for password in environ.values():
        assert password.isalnum() and len(password) >= 32
        assert re.search("[A-Z]", password) and re.search("[a-z]", password) and re.search("[0-9]", password)


def test_beats_and_workers_log_in_with_the_least_and_only_init_with_more(environ: dict[str, str]) -> None:
    urls = {
        name: service["environment"].get("SQLBEAT_DATABASE_URL")
        for name, service in SERVICES.items()
        if "environment" in service
    }
    users = {name: database_url(filled(url, environ)).user for name, url in urls.items() if url}
    assert users == {"tables": "sa", "beat": "sqlbeat", "worker": "sqlbeat"}
    assert database_url(filled(urls["beat"] or "", environ)).name == "sqlbeat"


def test_the_test_profile_runs_the_contract_suite_on_this_server(environ: dict[str, str]) -> None:
    tests = SERVICES["tests"]
    assert tests["profiles"] == ["test"] and tests["depends_on"].keys() == {"mssql"}
    assert required({"SQLBEAT_REQUIRE": tests["environment"]["SQLBEAT_REQUIRE"]}) == {"mssql", "odbc"}
    assert "Server=tcp:mssql,1433;UID=sa;" in filled(tests["environment"]["SQLBEAT_TEST_MSSQL"], environ)
    assert tests["command"] == ["python", "-m", "pytest", "tests/contract", "-k", "mssql"]
    assert (ROOT / "tests/contract").is_dir()
    assert "docker compose --profile test run --rm --build tests" in (ROOT / "Makefile").read_text()


def test_files_that_are_mounted_and_run_are_there() -> None:
    mounts = {}
    for name in ("database", "grants"):
        for volume in SERVICES[name]["volumes"]:
            source, target, _ = volume.split(":")
            mounts[target] = ROOT / source
        for script in SERVICES[name]["command"][-1].split(","):
            folder, _, file = script.rpartition("/")
            assert (mounts[folder] / file).is_file(), script


def test_the_role_of_the_login_is_that_of_the_grants() -> None:
    member = (ROOT / "infra/compose/member.sql").read_text()
    assert "ALTER ROLE sqlbeat_runner ADD MEMBER sqlbeat;" in member
    assert "CREATE ROLE sqlbeat_runner" in (ROOT / "sql/mssql/grants.sql").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", ["database.sql", "member.sql"])
def test_a_script_is_t_sql(script: str) -> None:
    import sqlfluff

    sqlfluff.parse((ROOT / "infra/compose" / script).read_text(), dialect="tsql")  # raises what cannot be parsed


def test_images_that_are_built_have_their_stage() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets == stages == {"app", "test"}


def test_the_image_has_what_the_driver_needs_and_no_rights() -> None:
    packages = system_command("Linux", ("debian",)).split()[2:]
    assert "-slim" in DOCKERFILE
    assert all(re.search(rf"install.*\b{re.escape(package)}\b", DOCKERFILE) for package in packages)
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]:
        assert re.findall(r"^USER (\w+)$", stage, re.MULTILINE)[-1] == "shop"


def test_the_image_has_all_of_the_package_before_it_installs_it() -> None:
    """A folder that the wheel is to hold and that is not there ends the build."""
    project = (ROOT / "pyproject.toml").read_text()  # no tomllib in Python 3.10
    section = project.partition("[tool.hatch.build.targets.wheel.force-include]\n")[2].partition("\n[")[0]
    folders = set(re.findall(r'^"?(\w+)[^=\n]* = ', section, re.MULTILINE))
    assert "sql" in folders
    before = DOCKERFILE.partition("RUN pip install")[0]
    copied = {name for names in re.findall(r"^COPY (.+) \S+$", before, re.MULTILINE) for name in names.split()}
    assert folders | {"pyproject.toml", "README.md", "LICENSE", "celery_sqlbeat"} <= copied


def test_files_that_the_image_takes_are_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    for sources in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists()
            assert source == "." or source in allowed
    assert not allowed & {".env", ".git", ".venv"}
