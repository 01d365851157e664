"""What is asked of a broker that nobody can speak to."""

import pytest
from celery import Celery
from kombu import transport

from celery_sqlbeat.checks.gather import gather_broker
from celery_sqlbeat.errors import BrokerUnavailable


@pytest.mark.parametrize("scheme", ["nobodys", "uninstalled"])
def test_a_broker_whose_transport_or_client_is_not_there_is_away(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transport.TRANSPORT_ALIASES, "uninstalled", "no_such_client:Transport")
    app = Celery("shop", broker=f"{scheme}://user:s3kr1t@host/0", set_as_current=False)
    with pytest.raises(
        BrokerUnavailable, match=f"{scheme}://.*: No such transport|No module named 'no_such_client'"
    ) as caught:
        gather_broker(app, 0.1)
    assert "s3kr1t" not in str(caught.value)
