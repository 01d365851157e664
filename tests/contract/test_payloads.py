"""Encrypted arguments on real databases: what stands in the rows, whoever has which key."""

import json
import time
from typing import Any

import pytest
from celery import Celery
from cryptography.fernet import Fernet

from celery_sqlbeat.api import Handle
from celery_sqlbeat.api.reseal import Resealed, reseal
from celery_sqlbeat.beat_schedule.entries import read_entries
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner
from celery_sqlbeat.beat_schedule.sync import import_code
from celery_sqlbeat.checks import diagnose
from celery_sqlbeat.config.payload_key import Keyring
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import PayloadLocked, VersionConflict
from celery_sqlbeat.model import Claim, SealJob
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.records import JobQuery
from celery_sqlbeat.store.sealed import sealed_store
from celery_sqlbeat.transfer.jsonl import export_lines, read_lines
from celery_sqlbeat.transfer.plan import import_in_batches
from tests.support.world import World

SECRET = "4711-0815"
OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


def app() -> Celery:
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.update(timezone="UTC")
    return made


class Process:
    """A process of the namespace that has these keys, and none but these."""

    def __init__(self, world: World, *keys: str) -> None:
        self.keys = Keyring(keys) if keys else None
        self.store: Store = world.store if self.keys is None else sealed_store(world.store, self.keys)
        conf = {"sqlbeat_namespace": world.namespace, **({"sqlbeat_payload_key": list(keys)} if keys else {})}
        self.app = app()
        self.beat = Handle(self.app, read_settings(conf, {}), self.store)
        self._world = world

    def put(self, name: str = "card", **fields: Any) -> None:
        self.beat.jobs.put(name, **{"task": "shop.pay", "schedule": "every 60s", "args": [SECRET], **fields})

    def claims(self) -> list[Claim]:
        """Claim what is due, as a beat of this process does."""
        planner = self._world.planner_for(payload_key=self.keys)
        due = self.store.due(500)
        return self.store.claim(due, planner(due), "beat", 15.0).claims

    def bring(self, **entry: Any) -> Any:
        """Import a beat_schedule of one entry, as a beat of this process does."""
        schedule = {"card": {"task": "shop.pay", "schedule": 60.0, **entry}}
        code = read_entries(self.app, schedule)
        planner = SchedulePlanner(code, self.beat.rules)
        return import_code(self.store, code.owner, code.release, code.told(), planner, 60.0)


def texts(world: World, name: str = "card") -> tuple[Any, Any]:
    row = world.job(name)
    return row["args"], row["kwargs"]


def everything(world: World) -> str:
    return str(
        [world.sql(f"SELECT * FROM {table} WHERE Namespace = ?", world.namespace) for table in ("Jobs", "JobRuns")]
    )


def test_arguments_stand_encrypted_in_the_table_and_reach_the_task_in_plain(world: World) -> None:
    process = Process(world, NEW)
    process.put(kwargs={"card": SECRET})
    assert all(text.startswith("fernet:") for text in texts(world))
    world.later(60)
    (claim,) = process.claims()
    assert (list(claim.args), claim.kwargs) == ([SECRET], {"card": SECRET})
    assert SECRET not in everything(world)


def test_the_program_reads_and_changes_them_as_if_they_were_plain(world: World) -> None:
    process = Process(world, NEW)
    process.put()
    version = process.beat.jobs.put("card", task="shop.pay", schedule="every 60s", args=[SECRET]).version
    assert version == 1, "the same again changes nothing, though it would be encrypted to another text"
    process.put(args=[SECRET, 2])
    job = process.beat.jobs.get("card")
    assert job is not None and (job.args, job.version) == ([SECRET, 2], 2)


def test_rows_by_hand_stay_plain_and_run(world: World) -> None:
    world.add("card", Args=json.dumps([SECRET]))
    (claim,) = Process(world, NEW).claims()
    assert list(claim.args) == [SECRET]


@pytest.mark.parametrize("keys", [(), (OLD,)])
def test_a_beat_without_the_key_leaves_the_job_to_those_that_have_it(world: World, keys: tuple[str, ...]) -> None:
    Process(world, NEW).put()
    world.later(60)
    before = world.job("card")
    stranger = Process(world, *keys)
    assert stranger.claims() == [] and world.job("card") == before
    (claim,) = Process(world, NEW).claims()
    assert list(claim.args) == [SECRET]


@pytest.mark.parametrize("keys", [(), (OLD,)])
def test_who_has_not_the_key_overwrites_nothing_in_plain_text(world: World, keys: tuple[str, ...]) -> None:
    Process(world, NEW).put()
    stranger = Process(world, *keys)
    with pytest.raises(PayloadLocked, match="set sqlbeat_payload_key"):
        stranger.put(args=["another"])
    assert texts(world)[0].startswith("fernet:")
    job = stranger.beat.jobs.get("card")
    assert job is not None and job.as_json()["args"] == "***"
    assert stranger.beat.jobs.pause("card").state == "paused"
    assert stranger.beat.jobs.delete("card")


def test_explain_and_check_say_that_the_key_is_missing(world: World) -> None:
    Process(world, NEW).put()
    stranger = Process(world)
    (says,) = (text for text in stranger.beat.explain("card").now if "encrypted" in text)
    assert "only a beat that has their key sends it" in says
    findings = diagnose(stranger.app, stranger.beat.settings, 0.1, stranger.store)
    (finding,) = (each for each in findings if each.name == "payload-key")
    assert finding.level == "error" and "card: arguments are encrypted, and no key" in finding.says
    owner = Process(world, NEW)
    names = {each.name for each in diagnose(owner.app, owner.beat.settings, 0.1, owner.store)}
    assert "payload-key" not in names


def test_check_names_keys_that_cannot_be_had(world: World) -> None:
    Process(world, NEW).put()
    settings = read_settings({"sqlbeat_namespace": world.namespace, "sqlbeat_payload_key": "file:/nowhere/key"}, {})
    findings = diagnose(app(), settings, 0.1, world.store)
    says = [each.says for each in findings if each.name == "payload-key"]
    assert says[0].startswith("sqlbeat_payload_key = file:/nowhere/key: the file cannot be read") and len(says) == 2


def test_an_entry_of_the_code_is_encrypted_and_not_written_again(world: World) -> None:
    process, stranger = Process(world, NEW), Process(world)
    assert process.bring(args=[SECRET]).added == ["card"]
    sealed = texts(world)[0]
    assert sealed.startswith("fernet:")
    assert process.bring(args=[SECRET]).changed == []
    assert stranger.bring(args=[SECRET]).changed == [] and texts(world)[0] == sealed
    assert process.bring(args=[SECRET, 2]).changed == ["card"]
    world.later(60)
    assert [list(claim.args) for claim in process.claims()] == [[SECRET, 2]]


def test_a_queued_run_is_published_again_by_those_who_have_the_key(world: World) -> None:
    process = Process(world, NEW)
    process.put()
    world.later(60)
    (claim,) = process.claims()
    process.store.mark_published([(claim, 120.0)])
    world.later(121)
    (lease,) = process.store.expired(10).leases
    assert lease.args == json.dumps([SECRET])
    (sealed,) = Process(world).store.expired(10).leases
    assert sealed.args.startswith("fernet:")


def test_keys_are_rotated_row_by_row(world: World) -> None:
    Process(world, OLD).put("old")
    both = Process(world, NEW, OLD)
    both.put("new")
    world.add("plain", Args=json.dumps([SECRET]), Kwargs="{}")
    world.add("none")
    world.add("code", Args="[]", Schedule="every 60s", CodeOwner="shop")
    world.add("broken", Args=json.dumps([SECRET]), Schedule="nonsense", IntervalMinutes=7, NextRunTime=None)
    Process(world, Fernet.generate_key().decode()).put("lost")
    before = {name: world.job(name) for name in ("new", "none", "broken")}
    steps: list[int] = []
    done = reseal(world.store, Keyring([NEW, OLD]), steps.append)
    assert done == Resealed(jobs=4, locked=["lost"]) and sum(steps) == 7
    assert SECRET not in everything(world)
    assert (world.job("new"), world.job("none")) == (before["new"], before["none"])
    after = world.job("broken")
    assert {k for k in after if after[k] != before["broken"][k]} - {"updatedat", "rowversion"} == {"args", "version"}
    world.change("broken", Schedule="every 60s", NextRunTime=world.now)
    world.later(60)
    claims = {claim.job_name: list(claim.args) for claim in Process(world, NEW).claims()}
    assert [claims[name] for name in ("old", "new", "plain", "broken", "none")] == [[SECRET]] * 4 + [[]]
    assert reseal(world.store, Keyring([NEW, OLD])) == Resealed(locked=["lost"]), "again, it writes nothing"


def test_a_rotation_takes_up_what_somebody_changes_meanwhile(world: World) -> None:
    process = Process(world, OLD)
    process.put()

    class Busy:
        """A store on which another process changes the job right before the first write."""

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

        def write_jobs(self, writes: Any) -> Any:
            if not changed:
                changed.append(True)
                process.put(args=["changed"])
            return world.store.write_jobs(writes)

    changed: list[bool] = []
    busy: Any = Busy()
    assert reseal(busy, Keyring([NEW, OLD])) == Resealed(jobs=1)
    world.later(60)
    (claim,) = Process(world, NEW).claims()
    assert list(claim.args) == ["changed"]


def test_a_job_that_never_stands_still_is_named(world: World) -> None:
    Process(world, OLD).put()
    lost: Any = type(
        "Lost",
        (),
        {
            "jobs": staticmethod(world.store.jobs),
            "runs": staticmethod(world.store.runs),
            "write_jobs": staticmethod(
                lambda writes: world.store.write_jobs(
                    [SealJob(w.job_name, version=99, args=None, kwargs=None) for w in writes]
                )
            ),
        },
    )()
    assert reseal(lost, Keyring([NEW, OLD])) == Resealed(changing=["card"])
    assert texts(world)[0].startswith("fernet:")


def test_what_is_exported_with_a_key_is_imported_with_it(world: World) -> None:
    process = Process(world, NEW)
    process.put(sensitive=True, kwargs={"ü": [1.5, None]})
    before = process.beat.jobs.get("card")
    lines = [str(line) for line in export_lines(process.store, process.beat.rules)]
    assert len(lines) == 1 and SECRET not in lines[0]
    process.beat.jobs.delete("card")
    read: list[Any] = list(read_lines(lines, process.beat.rules))
    steps = list(import_in_batches(process.store, process.beat.rules, [(each.job, each.spec) for each in read]))
    assert [step.action for step in steps] == ["add"]
    after = process.beat.jobs.get("card")
    assert before is not None and after is not None
    assert (after.args, after.kwargs, after.policies) == (before.args, before.kwargs, {"sensitive": True})
    assert all(text.startswith("fernet:") for text in texts(world))


def test_large_arguments_fit_their_columns_encrypted(world: World) -> None:
    process = Process(world, NEW)
    text = "ü" * ((262_144 - 4) // 2)
    process.put(args=[text])
    world.later(60)
    began = time.monotonic()
    (claim,) = process.claims()
    assert list(claim.args) == [text] and time.monotonic() - began < 60


@pytest.mark.parametrize("verb", ["put", "pause", "resume", "delete"])
def test_every_write_of_a_job_takes_the_version_that_was_read(world: World, verb: str) -> None:
    process = Process(world, NEW)
    process.put()
    if verb == "resume":
        process.beat.jobs.pause("card")
    version = process.beat.jobs.get("card").version  # type: ignore[union-attr]  # it is there
    fields = {"task": "shop.pay", "schedule": "every 5m"} if verb == "put" else {}
    write = getattr(process.beat.jobs, verb)
    for wrong in (version - 1, version + 1):
        with pytest.raises(VersionConflict, match=f"'card' is no longer at version {wrong}: read it again"):
            write("card", version=wrong, **fields)
    write("card", version=version, **fields)


def test_one_offs_are_encrypted_and_their_keys_rotated(world: World) -> None:
    old = Process(world, OLD)
    later = [old.beat.submit("shop.pay", [SECRET, number], countdown=60) for number in range(2)]
    (waits,) = (row for row in world.store.jobs(JobQuery(names=[later[0].id], one_offs=True)).values())
    assert waits.args.startswith("fernet:") and SECRET not in everything(world)
    assert old.beat.jobs.list() == []
    both = Keyring([NEW, OLD])
    assert reseal(world.store, both) == Resealed(jobs=2)
    assert reseal(world.store, both) == Resealed()
    world.later(61)
    assert old.claims() == []
    claims = Process(world, NEW).claims()
    assert {claim.run_id: list(claim.args) for claim in claims} == {
        run.id: [SECRET, number] for number, run in enumerate(later)
    }
