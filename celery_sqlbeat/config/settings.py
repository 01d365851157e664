"""The settings: read once from Celery's configuration and the environment, checked once.

Durations are seconds.

The environment wins over the configuration, as Celery has it with CELERY_BROKER_URL; an empty
variable is none.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from celery_sqlbeat import events
from celery_sqlbeat.config import plugins, policy, redaction, validation
from celery_sqlbeat.config.database_url import ALLOWED, DatabaseUrl, database_url
from celery_sqlbeat.config.payload_key import Keyring, payload_key
from celery_sqlbeat.config.plugins import Plugins
from celery_sqlbeat.config.policy import MOST_RETRIES, SHORTEST_LEASE, Policies
from celery_sqlbeat.errors import SettingError

PREFIX = "sqlbeat_"
STATEMENT_TIMEOUT_MAX = 5.0  # seconds; a claim or heartbeat takes milliseconds, so by then the database hangs
STATEMENTS_PER_PERIOD = 3  # a heartbeat and two repeats, or claim, mark and one repeat, fit into their period
POLLS_ALIVE = 3  # a beat says at every poll that it is alive; after so many missed ones it is not
LEAST_ALIVE = 10.0  # seconds; a busy host may hold a beat up for longer than a few short polls
STOP_SHARE = 0.1  # of the lease; a task is stopped by signals that a worker under load takes a while to deliver
STOP_LONGEST = 10.0  # seconds; SIGTERM, a grace, SIGKILL

T = TypeVar("T")


def _setting(default: T, kind: validation.Kind, doc: str) -> T:
    made: T = field(default=default, metadata={"kind": kind, "doc": doc})
    return made


@dataclass(frozen=True)
class Settings:
    """The settings of celery-sqlbeat, by their names without the prefix.

    Where the default depends on others, it is None until all are read.
    """

    database_url: DatabaseUrl = _setting(  # noqa: RUF009 - a frozen value
        database_url("sqlite:///sqlbeat.db"),
        validation.Kind(ALLOWED, database_url),
        "Where the tables are. Shown only with its secrets masked.",
    )
    namespace: str = _setting(
        "default", validation.name(100), "Several apps share one database; every statement is scoped to it."
    )
    release: str | None = _setting(
        None,
        validation.optional(validation.name(100), "a hash of the `beat_schedule`"),
        "Which deployment a beat belongs to; the newest one that has a live beat defines the jobs.",
    )
    poll_interval: float = _setting(
        60.0,
        validation.seconds(0.1),
        "The longest time between two polls for due jobs. Beat wakes for the next deadline by itself.",
    )
    notice_interval: float = _setting(
        5.0,
        validation.seconds(0),
        "Within this time a change made through this package is noticed. 0 turns it off; the ends of runs that are out "
        "are noticed all the same.",
    )
    lock_timeout: float = _setting(
        120.0, validation.seconds(SHORTEST_LEASE), "The run lease, where neither the row nor a policy has its own."
    )
    heartbeat_interval: float = _setting(
        30.0, validation.seconds(0.05), "How often a worker extends the leases of what it runs."
    )
    heartbeat_failures: int = _setting(
        3, validation.whole(1, 100), "After so many failed heartbeats in a row a worker abandons its runs."
    )
    dispatch_timeout: float = _setting(
        15.0,
        validation.seconds(0.5),
        "A claim that is neither published nor released by then may be taken by any beat.",
    )
    worker_memory: float = _setting(
        3600.0,
        validation.seconds(0),
        "A queue counts as served by this package for so long after its last worker was seen.",
    )
    unknown_task_timeout: float = _setting(
        3600.0,
        validation.seconds(0),
        "How long a slot waits for a worker that knows its task; then it ends as skipped (unknown task).",
    )
    batch_size: int = _setting(500, validation.whole(1, 1000), "Jobs per claim.")
    max_retries: int = _setting(
        3, validation.whole(0, MOST_RETRIES), "Retries of a failed slot before it goes to the dead letters."
    )
    republish: str = _setting(
        "auto",
        validation.one_of("auto", "never"),
        "Whether a message that was not taken in time is published again; with `auto` where everybody who consumes its "
        "queue is known to keep leases.",
    )
    max_lost_leases: int = _setting(
        5, validation.whole(0, MOST_RETRIES), "Lost leases of a slot before it goes to the dead letters."
    )
    retry_base: float = _setting(2.0, validation.seconds(0), "The longest wait before the first retry.")
    retry_factor: float = _setting(2.0, validation.number(1, 100), "By this the wait grows from retry to retry.")
    retry_max: float = _setting(
        600.0, validation.seconds(0), "No wait before a retry is longer, unless a strategy of yours says so."
    )
    retry_strategy: str = _setting(
        "exponential",
        plugins.known_or_path(plugins.RETRY_STRATEGIES),
        "How the wait before a retry is found; `exponential` has full jitter. A policy may say otherwise.",
    )
    schedules: tuple[tuple[str, str], ...] = _setting(
        (),
        plugins.named_paths(plugins.SCHEDULES),
        "Further kinds of schedule: the word that begins the text, and the function that reads the rest.",
    )
    claim_order: str = _setting(
        "oldest",
        plugins.known_or_path(plugins.CLAIM_ORDERS),
        "Which jobs a beat claims first where more are due than `sqlbeat_batch_size`.",
    )
    history_days: float = _setting(
        7.0, validation.number(0, 36500, above=True, unit=" of days"), "So long ended runs are kept."
    )
    policies: Policies = _setting(  # noqa: RUF009 - a frozen value
        Policies(),
        validation.Kind(
            "a mapping from job name or glob to its policies", policy.policies_from_setting, validation.from_json
        ),
        "Policies per job name or glob: " + ", ".join(f"`{name}`" for name in policy.KINDS) + ".",
    )
    allowed_tasks: tuple[str, ...] = _setting(
        ("*",),
        policy.globs(),
        "Globs of the tasks that jobs may name; a row that names another one is set aside, so that who may write rows "
        "may not run any task.",
    )
    max_payload: int = _setting(
        262_144, validation.whole(1, 2**30), "Larger arguments of a job are refused, in bytes of their JSON."
    )
    payload_key: Keyring | None = _setting(  # noqa: RUF009 - a frozen value
        None, payload_key(), "Encrypts the arguments of jobs at rest; the newest key first, with those before it."
    )
    durable_eta: float | None = _setting(
        None,
        validation.optional(validation.seconds(0, above=True), "off"),
        "Ordinary tasks whose eta is further ahead than so many seconds become durable one-offs, in every process that "
        "has called `celery_sqlbeat.setup(app)`.",
    )
    create_tables: bool | None = _setting(
        None, validation.optional(validation.flag(), "only on SQLite"), "Whether beat creates missing tables by itself."
    )
    redis_replicas: int = _setting(
        0,
        validation.whole(0, 100),
        "On Redis: so many replicas must have a write before it counts, as its command WAIT has it. 0: none.",
    )

    @property
    def creates_tables(self) -> bool:
        """Whether beat creates missing tables by itself."""
        return self.database_url.database in ("sqlite", "memory") if self.create_tables is None else self.create_tables

    @property
    def statement_timeout(self) -> float:
        """After so many seconds a statement is given up; well below the heartbeat interval."""
        period = min(self.heartbeat_interval, self.dispatch_timeout)
        return min(STATEMENT_TIMEOUT_MAX, period / STATEMENTS_PER_PERIOD)

    @property
    def beat_alive(self) -> float:
        """A beat that has been silent for more seconds is not alive."""
        return max(LEAST_ALIVE, POLLS_ALIVE * self.poll_interval)

    @property
    def worker_alive(self) -> float:
        """A worker that has been silent for more seconds is not alive."""
        return self.heartbeat_interval * self.heartbeat_failures

    @property
    def stop_timeout(self) -> float:
        """So many seconds before the end of a lease of `lock_timeout` its task is stopped."""
        return stop_timeout(self.lock_timeout)


def named_functions(settings: Settings) -> Iterator[tuple[Plugins, str, str]]:
    """Yield what the settings name that is to be imported: of which kind, its name, and where."""
    yield plugins.RETRY_STRATEGIES, settings.retry_strategy, "sqlbeat_retry_strategy"
    yield plugins.CLAIM_ORDERS, settings.claim_order, "sqlbeat_claim_order"
    for kind, _ in settings.schedules:
        yield plugins.SCHEDULES, kind, "sqlbeat_schedules"
    for pattern, rule in settings.policies.rules.items():
        if (name := rule.get("retry_strategy")) is not None:
            yield plugins.RETRY_STRATEGIES, name, f"sqlbeat_policies[{pattern!r}]['retry_strategy']"


def require_functions(settings: Settings, *kinds: Plugins) -> None:
    """Import what the settings name of these kinds; a SettingError says what is missing."""
    for kind, name, place in named_functions(settings):
        if kind in kinds:
            kind.require(name, place)


def stop_timeout(lease_seconds: float) -> float:
    """Return how many seconds before the end of its lease a task is told to stop."""
    return min(STOP_LONGEST, STOP_SHARE * lease_seconds)


def read_settings(conf: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings of Celery's configuration and the environment.

    The first bad one raises a SettingError.
    """
    _refuse_unknown(conf)
    _warn_of_unknown(environ)
    settings = Settings(**dict(_values(conf, environ)))
    _check_together(settings)
    return settings


def _values(conf: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for setting in fields(Settings):
        kind: validation.Kind = setting.metadata["kind"]
        name = PREFIX + setting.name
        text = environ.get(name.upper(), "").strip()
        if not text and name not in conf:
            continue
        try:
            yield setting.name, kind.read_text(text) if text else kind.read(conf.get(name))
        except validation.NotAllowed as refusal:
            place, value = (name.upper(), text) if text else (name, conf.get(name))
            raise SettingError(place, _shown(value), f"must be {refusal.allowed}") from None


def _shown(value: object, name: str = "") -> object:
    if redaction.is_secret(name):
        return redaction.HIDDEN
    # The URL may stand under the wrong name.
    is_url = isinstance(value, str) and ("://" in value or value.lower().startswith(redaction.ODBC))
    return redaction.masked(str(value)) if is_url else validation.shown(value)


def _check_together(settings: Settings) -> None:
    """Refuse values that are each possible, but not with one another."""
    needed = (
        settings.heartbeat_interval * settings.heartbeat_failures + settings.statement_timeout + settings.stop_timeout
    )
    if needed >= settings.lock_timeout:
        raise SettingError(
            "sqlbeat_lock_timeout",
            settings.lock_timeout,
            f"must be more than {needed:g} seconds: {settings.heartbeat_failures} heartbeats, one every "
            f"{settings.heartbeat_interval:g} s, {settings.statement_timeout:g} s for the last statement and "
            f"{settings.stop_timeout:g} s to stop the task; raise it, or lower sqlbeat_heartbeat_interval",
        )
    if settings.retry_base > settings.retry_max:
        raise SettingError(
            "sqlbeat_retry_base", settings.retry_base, f"must be at most sqlbeat_retry_max, {settings.retry_max:g}"
        )


def _refuse_unknown(conf: Mapping[str, Any]) -> None:
    for key in conf:
        # CELERY_ is the namespace that most shops give to config_from_object.
        name = key.lower().removeprefix("celery_") if isinstance(key, str) else ""
        if not name.startswith(PREFIX):
            continue
        if name not in NAMES:
            raise SettingError(key, _shown(conf.get(key), name), f"no such setting{_nearest(name)}")
        if name not in conf:
            raise SettingError(
                key,
                _shown(conf.get(key), name),
                f"Celery does not read this name; write {name}, or with a namespace CELERY_{name.upper()}",
            )


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    # Not refused: other programs name variables, too. For a service "sqlbeat" Kubernetes sets
    # SQLBEAT_PORT and more.
    for key in environ:
        name = key.lower()
        if key.startswith(PREFIX.upper()) and name not in NAMES and (hint := _nearest(name, str.upper)):
            events.advice(
                topic="settings",
                text=f"the environment variable {key} is no setting of celery-sqlbeat",
                remedy=hint.removeprefix("; "),
            )


def _nearest(name: str, spelled: Callable[[str], str] = str) -> str:
    close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.8)
    return f"; did you mean {spelled(close[0])}?" if close else ""


NAMES = tuple(PREFIX + setting.name for setting in fields(Settings))
