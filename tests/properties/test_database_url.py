"""A secret in a database URL is never shown, however it is written."""

import urllib.parse

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.redaction import masked
from celery_sqlbeat.errors import SettingError

MARK = "s3kr1t"  # each secret below holds it in its middle, so that half of a secret counts as shown


SECRETS = st.builds(lambda a, b: a + MARK + b, st.text(max_size=6), st.text(max_size=6))


AROUND = st.sampled_from(["", " ", ";", "&", "@", "/", "?", "#", ":", "{", "}", "=", "%", "\n", "\0", "é"])


QUOTED = SECRETS.map(lambda secret: urllib.parse.quote(secret, safe=""))


BRACED = SECRETS.map(lambda secret: "{" + secret.replace("}", "}}") + "}")


WRITTEN = [
    "postgresql://user:{}@host:5432/shop?sslmode=require",
    "postgresql://host/shop?sslpassword={}",
    "postgresql://host/shop?password={}&sslmode=require",
    "mssql://sa:{}@host/instance/shop?Encrypt=yes",
    "mssql://host/shop?AccessToken={}",
    "mssql+odbc:Server=host;UID=sa;PWD={};Encrypt=yes",
    "mssql+odbc:Server=host; Password = {}",
    "mysql://user:{}@host/shop",
    "redis://:{}@host:6379/0",
    "redis://a,b/0?sentinel=m&sentinel_password={}",
    "rediss://host?ssl_password={}",
    "nosuch://user:{}@host",
    "postgresql+psycopg://user:{}@host/shop",
    "mssql://host/shop?odbc_connect=Server%3Dhost%3BPWD%3D{}",
    "mssql+odbc:Server=host;Pwd={}",
    "postgresql://user%3A{}@host/shop",
    "mssql://host/shop?driver=x%3BPWD%3D{}",
]


def everything_said_about(text: str) -> str:
    said = masked(text)
    try:
        url = database_url(text)
    except SettingError as error:
        cause: BaseException | None = error
        while cause is not None:
            said += f"{cause} {cause!r} {cause.args}"
            cause = cause.__cause__ or cause.__context__
    else:
        said += f"{url} {url!r} {url.masked()}"
        said += url.mask(f"login failed: {url.password} / {text}")
    return said


@pytest.mark.parametrize("template", WRITTEN)
@settings(max_examples=30)
@given(secret=st.one_of(QUOTED, BRACED))
def test_a_well_written_secret_is_never_shown(template: str, secret: str) -> None:
    assert MARK not in everything_said_about(template.format(secret))


@pytest.mark.parametrize("template", WRITTEN)
@settings(max_examples=30)
@given(before=AROUND, after=AROUND, secret=SECRETS)
@example(before="1234/", after="", secret=MARK)
@example(before="a;", after="=", secret=MARK)
def test_a_badly_quoted_secret_is_not_shown_either(template: str, before: str, after: str, secret: str) -> None:
    assert MARK not in everything_said_about(template.format(before + secret + after))


@given(
    text=st.text(),
    scheme=st.sampled_from(["", "sqlite://", "postgresql://", "mssql://", "mssql+odbc:", "redis://", "memory://"]),
)
def test_any_text_is_read_or_refused_and_can_be_masked(text: str, scheme: str) -> None:
    everything_said_about(scheme + text)
