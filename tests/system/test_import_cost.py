"""Every celery process loads the module of our commands, so it must load in next to no time."""

import json
import subprocess
import sys


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    return set(json.loads(out))


def test_loading_the_commands_loads_nothing_of_weight_that_celery_has_not_loaded() -> None:
    extra = modules_after("import celery_sqlbeat.cli") - modules_after("import celery.signals, click")
    ours = {name for name in extra if name.split(".")[0] == "celery_sqlbeat"}
    assert ours == {
        "celery_sqlbeat",
        "celery_sqlbeat.cli",
        "celery_sqlbeat.worker",
        "celery_sqlbeat.errors",
    }
    assert extra - ours <= sys.stdlib_module_names | {"click"}


def test_importing_the_package_loads_neither_celery_nor_a_driver() -> None:
    loaded = modules_after("import celery_sqlbeat")
    assert not loaded & {"celery", "kombu", "psycopg", "pyodbc", "sqlite3", "celery_sqlbeat.store"}
