"""The rows of a namespace on a Redis server: races, lost answers, rights, fail-overs, clusters."""

import multiprocessing
import re
import secrets
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.crc

from celery_sqlbeat import environment
from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import DatabaseUnavailable, DatabaseUncertain, StoreError
from celery_sqlbeat.store.keyvalue.rows import ABSENT, Change, Key, Row, Scan, Snapshot, Versioned
from celery_sqlbeat.store.redis import place as place_module
from celery_sqlbeat.store.redis.place import PREFIX, RedisPlace
from tests.servers import server
from tests.support.beats import wait_for
from tests.support.lost_answers import LostAnswers
from tests.support.private_servers import PrivateServer, free_port, private_redis, private_sentinel

A: Key = ("job", "a")
MakePlace = Callable[..., RedisPlace]


def entries(table: str, row_id: str, row: Row) -> Mapping[str, int]:
    """Put a row into the indexes that it names itself."""
    indexes: Mapping[str, int] = row.get("in", {})
    return indexes


@pytest.fixture
def make_place() -> Iterator[MakePlace]:
    """Return what makes places of one namespace; its keys are removed."""
    url, namespace = server("redis"), f"test-{secrets.token_hex(6)}"
    made: list[RedisPlace] = []

    def make(at: str = url, **options: Any) -> RedisPlace:
        made.append(RedisPlace(database_url(at), options.pop("namespace", namespace), entries, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    with redis.Redis.from_url(url) as client:
        client.script_flush()
        if keys := list(client.scan_iter(f"{PREFIX}{{{namespace}*", count=10_000)):
            client.delete(*keys)


@pytest.fixture
def place(make_place: MakePlace) -> RedisPlace:
    return make_place()


def added(place: RedisPlace, row: Row, key: Key = A) -> Versioned:
    assert place.write([Change({key: (ABSENT, row)})]) == [True]
    return at(place, key)


def at(place: RedisPlace, key: Key = A) -> Versioned:
    return place.read([key]).rows[key]


def ids(snapshot: Snapshot) -> list[list[str]]:
    return [[name for name, _ in found.ids] for found in snapshot.scanned]


def test_an_empty_place_has_a_clock_and_nothing_else(place: RedisPlace) -> None:
    snapshot = place.read([A], [Scan("due"), Scan("due", only_count=True), Scan("due", after="a")])
    assert (snapshot.counter, snapshot.rows) == (0, {A: ABSENT})
    assert [(found.ids, found.total) for found in snapshot.scanned] == [([], 0)] * 3
    assert abs(snapshot.now / 1e6 - environment.unix_time()) < 5


def test_a_row_is_read_as_it_was_written(place: RedisPlace) -> None:
    row = {"n": 2**60, "none": None, "x": 0.1, "text": 'é"\\\n\0\ud800☃', "list": [True, {"a": []}]}
    read = added(place, row, ("job", "naïve }{ ☃"))
    assert read.row == row
    assert read.version > 0


def test_what_is_not_as_it_was_read_is_not_written(place: RedisPlace) -> None:
    first = added(place, {"n": 1})
    other: Key = ("run", "b")
    assert place.write([Change({A: (first, {"n": 2})}), Change({A: (first, {"n": 3}), other: (ABSENT, {})})]) == [
        True,
        False,
    ]
    assert at(place).row == {"n": 2}
    assert at(place, other) == ABSENT
    assert place.write([Change({A: (ABSENT, {"n": 4})}), Change({A: (first, None)})]) == [False, False]
    assert at(place).row == {"n": 2}


def test_a_row_that_stays_is_compared_and_not_written(place: RedisPlace) -> None:
    first, other = added(place, {"n": 1}), ("run", "b")
    assert place.write([Change({A: (first, {"n": 1}), other: (ABSENT, {})})]) == [True]
    assert at(place) == first
    added_later = at(place, other)
    place.write([Change({A: (first, {"n": 2})})])
    assert place.write([Change({A: (first, {"n": 1}), other: (added_later, None)})]) == [False]
    assert at(place, other) == added_later


def test_a_version_never_comes_again_also_where_the_server_has_lost_its_sequence(place: RedisPlace) -> None:
    seen = [added(place, {}).version]
    for _ in range(3):
        place.write([Change({A: (at(place), None)})])
        assert at(place) == ABSENT
        seen.append(added(place, {}).version)
        with redis.Redis.from_url(server("redis")) as client:
            client.delete(f"{place.prefix}sequence")
    assert seen == sorted(set(seen))


def test_an_index_has_its_rows_in_order(place: RedisPlace) -> None:
    scores = {"a": 5, "b": 5, "c": -7, "d": 2**53}
    for name, score in scores.items():
        added(place, {"in": {"due": score, "names": 0}}, ("job", name))
    by_score = place.read(
        [],
        [
            Scan("due"),
            Scan("due", low=5, high=5),
            Scan("due", limit=2),
            Scan("due", is_reversed=True, limit=2),
            Scan("due", high=5, is_reversed=True),
            Scan("due", low=6),
        ],
    )
    assert ids(by_score) == [["c", "a", "b", "d"], ["a", "b"], ["c", "a"], ["d", "b"], ["b", "a", "c"], ["d"]]
    assert by_score.scanned[0].ids == [("c", -7), ("a", 5), ("b", 5), ("d", 2**53)]
    by_name = place.read(
        [],
        [
            Scan("names", after="b"),
            Scan("names", after="b", limit=1),
            Scan("names", after="c", is_reversed=True),
            Scan("names", after="bb"),
        ],
    )
    assert ids(by_name) == [["c", "d"], ["c"], ["b", "a"], ["c", "d"]]
    assert by_name.scanned[1].ids == [("c", 0)]
    counts = place.read([], [Scan("due", only_count=True), Scan("due", low=6, only_count=True)])
    assert [found.total for found in counts.scanned] == [4, 1]


def test_a_row_moves_within_its_indexes_and_leaves_them(place: RedisPlace) -> None:
    row = added(place, {"in": {"due": 1, "names": 0}})
    place.write([Change({A: (row, {"in": {"due": 2, "other": 3}})})])
    scans = [Scan("due"), Scan("names"), Scan("other")]
    assert [found.ids for found in place.read([], scans).scanned] == [[("a", 2)], [], [("a", 3)]]
    place.write([Change({A: (at(place), None)})])
    assert ids(place.read([], scans)) == [[], [], []]


def test_the_counter_grows_with_news_that_were_written(place: RedisPlace) -> None:
    first = added(place, {})
    assert place.read().counter == 0
    place.write([Change({A: (first, {"n": 1})}, is_news=True)])
    counted = place.read().counter
    assert counted == 1
    place.write([Change({A: (first, {"n": 2})}, is_news=True)])  # not as it was read
    assert place.read().counter == counted
    place.write([Change({A: (at(place), {"n": 2})}, is_news=True)])
    assert place.read().counter > counted


def test_namespaces_see_nothing_of_each_other_and_stay_in_one_slot(make_place: MakePlace, place: RedisPlace) -> None:
    other = make_place(namespace=f"{place.prefix[9:-2]}}}{{:*")
    added(place, {"in": {"names": 0}})
    assert (other.read([A]).rows[A], ids(other.read([], [Scan("names")]))) == (ABSENT, [[]])
    added(other, {"in": {"names": 0}})
    with redis.Redis.from_url(server("redis")) as client:
        keys = list(client.scan_iter(f"{other.prefix.replace('*', '?')}*", count=10_000))
        assert len(keys) > 2
        assert len({redis.crc.key_slot(key) for key in keys}) == 1


def test_many_rows_and_changes_go_in_chunks(place: RedisPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_module, "_MOST_READ", 7)
    monkeypatch.setattr(place_module, "_MOST_CHANGES", 5)
    monkeypatch.setattr(place_module, "_MOST_CHARACTERS", 200)
    keys = [("job", f"{number:03d}") for number in range(40)]
    assert place.write([Change({key: (ABSENT, {"id": key[1], "in": {"names": 0}})}) for key in keys]) == [True] * 40
    snapshot = place.read([*keys, ("job", "none")], [Scan("names")])
    assert [row.row and row.row["id"] for row in snapshot.rows.values()] == [*(key[1] for key in keys), None]
    assert ids(snapshot) == [[key[1] for key in keys]]
    long = [Change({key: (snapshot.rows[key], {"text": "x" * 300})}) for key in keys[::2]]
    assert place.write([*long, Change({A: (snapshot.rows[keys[0]], {})})]) == [True] * 20 + [False]


def test_more_keys_than_one_command_takes_are_read(place: RedisPlace) -> None:
    keys = [("job", str(number)) for number in range(4500)]
    assert all(place.write([Change({key: (ABSENT, {"n": key[1]})}) for key in keys]))
    assert [row.row for row in place.read(keys).rows.values()] == [{"n": key[1]} for key in keys]


def test_of_many_who_change_a_row_each_sees_what_the_one_before_it_wrote(place: RedisPlace) -> None:
    added(place, {"n": 0})
    lost = [0]

    def count() -> None:
        for _ in range(50):
            while True:
                read = at(place)
                assert read.row is not None
                n = read.row["n"] + 1
                if place.write([Change({A: (read, {"n": n, "in": {"due": n}})})]) == [True]:
                    break
                lost[0] += 1

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert at(place).row == {"n": 400, "in": {"due": 400}}
    assert place.read([], [Scan("due")]).scanned[0].ids == [("a", 400)]
    assert lost[0] > 0, "nobody was in anybody's way"


@pytest.fixture
def wire() -> Iterator[LostAnswers]:
    made = LostAnswers(redis.Redis.from_url(server("redis")).connection_pool.connection_kwargs["port"])
    yield made
    made.close()


def over(wire: LostAnswers) -> str:
    number = redis.Redis.from_url(server("redis")).connection_pool.connection_kwargs.get("db", 0)
    return f"redis://127.0.0.1:{wire.port}/{number}"


def test_a_write_whose_answer_is_lost_gets_the_same_answer_once_more(make_place: MakePlace, wire: LostAnswers) -> None:
    place = make_place(over(wire))
    first = added(place, {"n": 1})
    wire.to_lose = 1
    other: Key = ("run", "b")
    ours, late = Change({A: (first, {"n": 2})}, is_news=True), Change({A: (first, {"n": 3})})
    assert place.write([ours, late, Change({other: (ABSENT, {})})]) == [True, False, True]
    assert wire.to_lose == 0
    written = at(place)
    assert written.row == {"n": 2}
    assert (place.read().counter, written.version > first.version) == (1, True), "it was written once"


def test_a_write_gets_its_answer_though_others_have_changed_the_row_since(
    make_place: MakePlace, place: RedisPlace, wire: LostAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = make_place(over(wire))
    first = added(ours, {"n": 1})

    def others_write(_: float) -> None:
        place.write([Change({A: (at(place), None)})])

    monkeypatch.setattr(ours._patience, "_sleep", others_write)
    wire.to_lose = 1
    assert ours.write([Change({A: (first, {"n": 2})})]) == [True]
    assert at(place) == ABSENT


@pytest.mark.slow
def test_a_write_that_arrives_after_its_sender_has_given_up_stands_as_any_other(
    make_place: MakePlace, wire: LostAnswers
) -> None:
    place, patient = make_place(over(wire), statement_timeout=0.1), make_place()
    first = added(patient, {"n": 1})
    wait_for(lambda: _answers(place), 60, lambda: "")
    wire.passes.clear()
    with pytest.raises(DatabaseUnavailable):
        place.write([Change({A: (first, {"n": 2})})])
    wire.passes.set()
    wait_for(lambda: at(patient).row == {"n": 2}, 60, lambda: "")
    after = at(patient)
    assert make_place(over(wire)).write([Change({A: (first, {"n": 3})})]) == [False]
    assert at(patient) == after


def _answers(place: RedisPlace) -> bool:
    try:
        return place.read().now > 0
    except DatabaseUnavailable:
        return False


def test_a_server_that_has_forgotten_the_scripts_gets_them_again(place: RedisPlace) -> None:
    first = added(place, {"n": 1})
    with redis.Redis.from_url(server("redis")) as client:
        client.script_flush()
    assert place.write([Change({A: (first, {"n": 2})})]) == [True]
    assert at(place).row == {"n": 2}


def test_a_child_opens_connections_of_its_own(place: RedisPlace) -> None:
    added(place, {"n": 0})

    def count() -> None:
        for _ in range(50):
            while not place.write([Change({A: (read := at(place), {"n": (read.row or {})["n"] + 1})})])[0]:
                pass

    children = [multiprocessing.get_context("fork").Process(target=count) for _ in range(2)]
    for child in children:
        child.start()
    count()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert at(place).row == {"n": 150}


def test_a_port_where_nobody_listens_is_an_outage(make_place: MakePlace) -> None:
    place = make_place("redis://:s3cret-word@127.0.0.1:1/0", statement_timeout=0.2)
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1") as caught:
        place.read()
    assert "s3cret" not in str(caught.value)


def test_a_key_of_somebody_else_is_an_error_and_no_outage(place: RedisPlace) -> None:
    with redis.Redis.from_url(server("redis")) as client:
        client.hset(f"{place.prefix}job:a", "x", 1)
    with pytest.raises(StoreError, match="WRONGTYPE") as caught:
        place.write([Change({A: (ABSENT, {})})])
    assert not isinstance(caught.value, DatabaseUnavailable)


# Servers of a test's own.

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"
RIGHTS = " ".join(re.findall(r"\+\S+", PAGE.read_text(encoding="utf-8").partition("ACL SETUSER")[2].partition("\n")[0]))
"""What the page gives a user."""


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateServer]:
    with private_redis() as made:
        yield made


def port_of(made: PrivateServer) -> str:
    return made.url.removesuffix("/0").rpartition(":")[2]


def test_a_user_with_the_rights_of_the_page_can_do_everything(make_place: MakePlace, private: PrivateServer) -> None:
    with redis.Redis.from_url(private.url) as client:
        client.execute_command("ACL", "SETUSER", "beat", "on", ">pw", "~sqlbeat:*", "-@all", *RIGHTS.split())
    place = make_place(private.url.replace("://", "://beat:pw@"))
    row = added(place, {"in": {"due": 1}})
    assert place.write([Change({A: (row, None)}, is_news=True)]) == [True]
    assert place.read([A], [Scan("due"), Scan("due", after="a"), Scan("due", only_count=True)]).rows == {A: ABSENT}


@pytest.mark.parametrize("right", ["zadd", "set", "zrange", "getrange", "time", "del", "zscore"])
def test_a_user_without_a_right_is_told_which_before_anything_is_written(
    make_place: MakePlace, private: PrivateServer, right: str
) -> None:
    with redis.Redis.from_url(private.url) as client:
        rest = RIGHTS.replace(f"+{right} ", " ").replace("+script|load", "+script").split()
        if right == "zscore":
            rest = [name for name in rest if name != "+zscore"]
        client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw-of-poor", "~sqlbeat:*", *rest)
        with pytest.raises(StoreError, match=f"'poor' of Redis may not run {right.upper()} ") as caught:
            make_place(private.url.replace("://", "://poor:pw-of-poor@")).write([Change({A: (ABSENT, {})})])
        assert "pw-of-poor" not in str(caught.value)


@pytest.mark.parametrize("changed", ["+evalsha", "~sqlbeat:*"])
def test_a_user_who_may_run_no_script_or_has_other_keys_is_told_so(
    make_place: MakePlace, private: PrivateServer, changed: str
) -> None:
    with redis.Redis.from_url(private.url) as client:
        rules = ["~sqlbeat:*", *RIGHTS.split()]
        rules = [rule for rule in rules if rule != changed] + ["~other:*"]
        client.execute_command("ACL", "SETUSER", "poor", "reset", "on", ">pw", *rules)
    with pytest.raises(StoreError, match=r"evalsha|one of the keys") as caught:
        make_place(private.url.replace("://", "://poor:pw@")).read()
    assert not isinstance(caught.value, DatabaseUnavailable)


@pytest.mark.parametrize("login", ["beat:wrong-word@", "nobody:wrong-word@"])
def test_a_wrong_password_is_one_line_and_no_outage(make_place: MakePlace, private: PrivateServer, login: str) -> None:
    with pytest.raises(StoreError, match="invalid username-password") as caught:
        make_place(private.url.replace("://", f"://{login}")).read()
    assert not isinstance(caught.value, DatabaseUnavailable)
    assert "wrong-word" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_by_tls_a_certificate_is_checked_unless_the_address_says_otherwise(
    make_place: MakePlace, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redis"]
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    port = free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with private_redis(*options, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"):
        address = f"rediss://127.0.0.1:{port}/0"
        assert added(make_place(f"{address}?ssl_ca_certs={certificate}"), {"n": 1}).row == {"n": 1}
        assert at(make_place(f"{address}?ssl_cert_reqs=CERT_NONE")).row == {"n": 1}
        with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            make_place(address).read()
        assert not isinstance(caught.value, DatabaseUnavailable)
        with pytest.raises(StoreError, match=r"Hostname mismatch|not valid for"):
            make_place(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}").read()


def test_a_server_without_memory_says_so_and_is_read_all_the_same(make_place: MakePlace) -> None:
    with private_redis() as private, redis.Redis.from_url(private.url) as client:
        place = make_place(private.url, statement_timeout=0.3)
        first = added(place, {"n": 1})
        client.config_set("maxmemory", "1mb")
        with pytest.raises(DatabaseUnavailable, match="no memory left within its maxmemory"):
            place.write([Change({A: (first, {"n": 2, "in": {"due": 2}})})])
        other = make_place(private.url)
        assert at(other) == first
        client.config_set("maxmemory", "0")
        assert other.write([Change({A: (first, {"n": 2})})]) == [True]


@pytest.mark.slow
def test_a_replica_is_refused_and_of_several_hosts_the_primary_is_taken(
    make_place: MakePlace, private: PrivateServer
) -> None:
    with private_redis("--replicaof", "127.0.0.1", port_of(private)) as replica:
        wait_for(lambda: _is_linked(replica), 30, lambda: "")
        with pytest.raises(DatabaseUnavailable, match=rf"{port_of(replica)} can only be read: it is a replica"):
            make_place(replica.url, statement_timeout=0.2).read()
        both = f"redis://127.0.0.1:{port_of(replica)},127.0.0.1:{port_of(private)}/0"
        assert added(make_place(both), {"n": 1}, ("job", secrets.token_hex(4))).row == {"n": 1}


def _is_linked(replica: PrivateServer) -> bool:
    with redis.Redis.from_url(replica.url) as client:
        return bool(client.info("replication")["master_link_status"] == "up")


@pytest.mark.slow
def test_where_replicas_are_to_have_a_write_it_is_uncertain_until_they_do(
    make_place: MakePlace, private: PrivateServer
) -> None:
    key = ("job", secrets.token_hex(4))
    lonely = make_place(private.url, replicas=1, statement_timeout=0.2)
    with pytest.raises(DatabaseUncertain, match="0 replicas of 1"):
        lonely.write([Change({key: (ABSENT, {"n": 1})})])
    with private_redis("--replicaof", "127.0.0.1", port_of(private)) as replica:
        wait_for(lambda: _is_linked(replica), 30, lambda: "")
        place = make_place(private.url, replicas=1)
        assert place.write([Change({key: (at(place, key), {"n": 2})})]) == [True]
        with redis.Redis.from_url(replica.url) as client:
            kept = client.get(f"{place.prefix}job:{key[1]}")
        assert isinstance(kept, bytes)
        assert kept.endswith(b'{"n":2}')


@pytest.mark.slow
def test_after_a_fail_over_the_sentinel_leads_to_the_new_primary(make_place: MakePlace) -> None:
    with private_redis() as primary, private_redis("--replicaof", "127.0.0.1", port_of(primary)) as replica:
        wait_for(lambda: _is_linked(replica), 30, lambda: "")
        with private_sentinel(primary) as sentinel, redis.Redis.from_url(sentinel.url) as told:
            wait_for(lambda: len(_replicas_known(told)) == 1, 30, lambda: str(told.info()))
            place = make_place(f"redis://127.0.0.1:1,127.0.0.1:{port_of(sentinel)}/0?sentinel=shop", replicas=1)
            first = added(place, {"n": 1})
            place._replicas = 0  # of two servers one is left
            primary.stop(9)
            wait_for(lambda: _writes(place, first), 60, lambda: str(told.info()))
            assert at(place).row == {"n": 2}
            primary.start()  # it comes back as a primary, until the sentinel has told it otherwise
            assert at(make_place(f"{sentinel.url}/0?sentinel=shop")).row == {"n": 2}
            with pytest.raises(DatabaseUnavailable, match="knows no primary named nosuch"):
                make_place(f"{sentinel.url}/0?sentinel=nosuch", statement_timeout=0.2).read()


def _replicas_known(sentinel: Any) -> list[Any]:
    return [each for each in sentinel.sentinel_slaves("shop") if each["flags"] == "slave"]


def _writes(place: RedisPlace, first: Versioned) -> bool:
    try:
        return place.write([Change({A: (first, {"n": 2})})]) == [True]
    except DatabaseUnavailable:
        return False


@pytest.mark.slow
def test_a_cluster_leads_to_the_node_that_has_the_namespace(make_place: MakePlace) -> None:
    options = ("--cluster-enabled", "yes")
    with (
        private_redis(*options) as one,
        private_redis(*options) as two,
        redis.Redis.from_url(one.url) as first,
        redis.Redis.from_url(two.url) as second,
    ):
        names = [client.execute_command("CLUSTER", "MYID") for client in (first, second)]
        slot = redis.crc.key_slot(b"moving")
        first.execute_command("CLUSTER", "ADDSLOTS", *(each for each in range(16384) if each % 2))
        second.execute_command("CLUSTER", "ADDSLOTS", *(each for each in range(16384) if not each % 2))

        def have_met() -> bool:
            # A node forgets a handshake that the other one was too slow for, so it is asked again.
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", port_of(two))
            return all(b"cluster_state:ok" in _cluster(client) for client in (first, second))

        wait_for(have_met, 60, lambda: f"{_cluster(first)!r}\n{_cluster(second)!r}")
        place = make_place(one.url, namespace="moving")
        keys = [("job", str(number)) for number in range(20)]
        assert all(place.write([Change({key: (ABSENT, {"in": {"due": 1}}) for key in keys})]))
        # The slot goes to the other node, with everything in it.
        here, there = (first, second) if slot % 2 else (second, first)
        there_name, there_port = (names[1], port_of(two)) if slot % 2 else (names[0], port_of(one))
        here_name = names[0] if slot % 2 else names[1]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", here_name)
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", there_name)
        moved = here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        here.execute_command("MIGRATE", "127.0.0.1", there_port, "", 0, 5000, "KEYS", *moved)
        for client in (there, here):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", there_name)
        snapshot = place.read(keys, [Scan("due", only_count=True)])
        assert snapshot.scanned[0].total == 20
        assert place.write([Change({keys[0]: (snapshot.rows[keys[0]], None)})]) == [True]
        assert make_place(one.url, namespace="moving").read(keys[:1]).rows == {keys[0]: ABSENT}


def _cluster(client: Any) -> bytes:
    answer: bytes | str = client.execute_command("CLUSTER", "INFO")
    return answer if isinstance(answer, bytes) else str(answer).encode()
