"""A database URL is read as written, refused with a remedy, and never shown with a secret in it."""

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.redaction import HIDDEN, mask_text, masked
from celery_sqlbeat.errors import SettingError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sqlite:///sqlbeat.db", "sqlbeat.db"),
        ("sqlite:////var/lib/sqlbeat.db", "/var/lib/sqlbeat.db"),
        ("sqlite:///a%3Fb%23c@d.db", "a?b#c@d.db"),
        ("SQLite:///C:/data/sqlbeat.db", "C:/data/sqlbeat.db"),
    ],
)
def test_a_sqlite_url_names_a_file(text: str, name: str) -> None:
    url = database_url(text)
    assert (url.database, url.name, url.in_memory) == ("sqlite", name, False)


@pytest.mark.parametrize("text", ["sqlite://", "sqlite:///:memory:"])
def test_a_sqlite_url_without_a_file_is_in_memory(text: str) -> None:
    assert database_url(text).in_memory


def test_a_postgresql_url_gives_what_libpq_needs() -> None:
    url = database_url("postgresql://us%3Aer:p%40ss%2F@db.example:6432/shop?sslmode=require")
    assert url.database == "postgresql"
    assert url.libpq() == {
        "user": "us:er",
        "password": "p@ss/",
        "host": "db.example",
        "port": "6432",
        "dbname": "shop",
        "sslmode": "require",
    }


def test_a_postgresql_url_may_name_several_hosts_or_a_socket() -> None:
    several = database_url("postgres://a,b:5433,[::1]:5434/shop").libpq()
    assert (several["host"], several["port"]) == ("a,b,::1", ",5433,5434")
    assert database_url("postgresql:///shop?host=/run/postgresql").libpq() == {
        "dbname": "shop",
        "host": "/run/postgresql",
    }
    assert database_url("postgresql://%2Frun%2Fpostgresql/shop").host == "/run/postgresql"


def test_an_mssql_url_may_name_port_instance_and_options() -> None:
    url = database_url("mssql://sa:p%3Bw@db:1434/prod/shop?driver=ODBC%20Driver%2018&Encrypt=yes")
    assert (url.database, url.host, url.port, url.instance, url.name) == ("mssql", "db", 1434, "prod", "shop")
    assert (url.user, url.password) == ("sa", "p;w")
    assert url.options == {"driver": "ODBC Driver 18", "Encrypt": "yes"}


def test_an_mssql_url_needs_neither_user_nor_port() -> None:
    url = database_url("mssql://shop.database.windows.net/shop")
    assert (url.user, url.password, url.port, url.instance) == (None, None, None, None)


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
def test_a_mysql_url_is_read(scheme: str) -> None:
    url = database_url(f"{scheme}://be%40t:p%2Fw@a:3307,b/shop?ssl_ca=/ca.pem&ssl_mode=verify_ca")
    assert (url.database, url.hosts, url.name) == ("mysql", (("a", 3307), ("b", None)), "shop")
    assert (url.user, url.password) == ("be@t", "p/w")
    assert url.options == {"ssl_ca": "/ca.pem", "ssl_mode": "verify_ca"}
    assert str(url) == f"{scheme}://be%40t:***@a:3307,b/shop?ssl_ca=/ca.pem&ssl_mode=verify_ca"
    assert "secret" not in str(database_url(f"{scheme}:///shop?unix_socket=/run/x.sock&ssl_key_password=secret"))


def test_a_redis_url_is_read() -> None:
    url = database_url("rediss://be%40t:p%2Fw@a:7000,b/3?ssl_cert_reqs=CERT_NONE&ssl_ca_certs=/ca.pem")
    assert (url.database, url.hosts, url.name) == ("redis", (("a", 7000), ("b", None)), "3")
    assert (url.user, url.password) == ("be@t", "p/w")
    assert url.options == {"ssl_cert_reqs": "none", "ssl_ca_certs": "/ca.pem"}
    assert str(url) == "rediss://be%40t:***@a:7000,b/3?ssl_cert_reqs=CERT_NONE&ssl_ca_certs=/ca.pem"
    assert database_url("redis://").name == "0"


def test_the_secrets_of_sentinels_are_masked() -> None:
    url = database_url("redis://:first@a,b:26380/0?sentinel=mymaster&sentinel_username=s&sentinel_password=second")
    assert url.options["sentinel"] == "mymaster"
    assert str(url) == "redis://:***@a,b:26380/0?sentinel=mymaster&sentinel_username=s&sentinel_password=***"
    assert url.mask("first second third") == "*** *** third"


@pytest.mark.parametrize(("text", "name"), [("memory://", ""), ("memory://shop", "shop")])
def test_a_store_in_memory_may_have_a_name(text: str, name: str) -> None:
    url = database_url(text)
    assert (url.database, url.name, url.in_memory) == ("memory", name, True)


def test_an_odbc_string_is_kept_and_read() -> None:
    string = "Driver={ODBC Driver 18 for SQL Server};Server=tcp:db,1433; Database=shop;UID=sa;PWD={a;b}}c};"
    url = database_url("mssql+odbc:" + string)
    assert (url.odbc, url.name, url.user, url.password) == (string, "shop", "sa", "a;b}c")
    assert str(url) == (
        "mssql+odbc:Driver={ODBC Driver 18 for SQL Server};Server=tcp:db,1433;Database=shop;UID=sa;pwd=***"
    )


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "no kind of database"),
        ("sqlbeat.db", "no kind of database"),
        ("oracle://h/d", "no kind of database that is known, as sqlite://, postgresql://, "),
        ("mysql://h", "name one database"),
        ("mysql://h/a/b", "name one database"),
        ("mariadb://h/a?charset=latin1", "charset is no option; they are ssl_ca"),
        ("mysql://h/a?ssl_mode=on", "ssl_mode is one of disabled, preferred, required, verify_ca, verify_identity"),
        ("mysql://h/a?ssl_mode=preferred&ssl_ca=/ca.pem", "looks at no certificate"),
        ("mysql://h/a?unix_socket=/run/x.sock", "both a host and a unix_socket"),
        ("redis://h/shop", "its database is not a number"),
        ("redis://h/0/1", "its database is not a number"),
        ("redis://h/0?db=1", "db is no option; they are sentinel, "),
        ("redis://h/0?ssl_ca_certs=/ca.pem", "nothing without TLS"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "ssl_cert_reqs is one of required, optional, none"),
        ("redis://h/0?sentinel=", "sentinel is empty"),
        ("redis://h/0?sentinel_password=x", "nothing without sentinel"),
        ("memory://user@name", "write memory://"),
        ("memory://name/0", "write memory://"),
        ("sqlite:///", "write sqlite:///file.db"),
        ("sqlite:///folder/", "write sqlite:///file.db"),
        ("sqlite://host/file.db", "write sqlite:///file.db"),
        ("sqlite:///file.db?timeout=5", "write sqlite:///file.db"),
        ("sqlite:///a\nb.db", "line end"),
        ("postgresql://host", "name one database"),
        ("postgresql://host/a/b", "name one database"),
        ("postgresql://host:0/a", "port"),
        ("postgresql://host:70000/a", "port"),
        ("postgresql://ho;st/a", "host"),
        ("postgresql://u:p/w@host/a", "%2F"),
        ("postgresql://u:p?w@host/a", "%3F"),
        ("postgresql://u:p#w@host/a", "%23"),
        ("postgresql://host/a?sslmode", "name=value"),
        ("postgresql://host/a?sslmode=a&SSLMODE=b", "twice"),
        ("mssql://host", "one host and one database"),
        ("mssql:///shop", "one host and one database"),
        ("mssql://a,b/shop", "one host and one database"),
        ("mssql://host/a/b/c", "one host and one database"),
        ("mssql://host//shop", "one host and one database"),
        ("mssql://host/shop?PWD=x", "PWD is no option"),
        ("mssql://host/shop?a%3Bb=x", "name=value"),
        ("mssql+odbc:", "no ODBC string"),
        ("mssql+odbc:Server", "no ODBC string"),
        ("mssql+odbc:Server=a;b;Database=c", "no ODBC string"),
        ("mssql+odbc:Server=a;PWD={x", "no ODBC string"),
        ("mssql+odbc:Server=a;PWD={x}y", "no ODBC string"),
        ("mssql+odbc:Database=a", "neither Server nor DSN"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(text: str, hint: str) -> None:
    with pytest.raises(SettingError) as caught:
        database_url(text)
    assert caught.value.name == "sqlbeat_database_url"
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, b"sqlite://", True])
def test_a_url_that_is_not_a_text_is_refused(value: object) -> None:
    with pytest.raises(SettingError, match="not a text"):
        database_url(value)


def test_a_url_without_a_secret_is_shown_as_written() -> None:
    for text in [
        "sqlite:////var/lib/sqlbeat.db",
        "postgresql://user@a:1,b:2/shop?sslmode=require",
        "mssql://host/instance/shop?Encrypt=yes&driver=x",
        "mssql+odbc:DSN=shop;Trusted_Connection=yes",
    ]:
        assert masked(text) == text


def test_a_text_that_is_no_url_shows_nothing() -> None:
    assert masked("s3kr1t") == HIDDEN
    assert masked("postgresql:user:s3kr1t@host") == HIDDEN


@pytest.mark.parametrize(
    "said",
    [
        "connection to postgresql://u:s3kr1t%7D%5C@h/d failed",
        "password s3kr1t}\\ is wrong",
        "the parameters were {'password': 's3kr1t}\\\\'}",
        "string PWD={s3kr1t}}\\};UID=u",
    ],
)
def test_a_drivers_error_is_shown_without_the_secret(said: str) -> None:
    shown = mask_text(said, "postgresql://u:s3kr1t%7D%5C@h/d")
    assert "s3kr1t" not in shown
    assert HIDDEN in shown
    assert mask_text("relation jobs does not exist", "postgresql://u:s3kr1t@h/d") == "relation jobs does not exist"
