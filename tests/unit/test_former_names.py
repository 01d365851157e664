"""Names of earlier releases go on to work for the programs that import them."""

import importlib

import pytest

from celery_sqlbeat import api, brokers, checks, errors

FORMER = {
    "celery_sqlbeat.handle.Handle": api.Handle,
    "celery_sqlbeat.handle.Job": api.Job,
    "celery_sqlbeat.handle.Run": api.Run,
    "celery_sqlbeat.diagnosis.Finding": checks.Finding,
    "celery_sqlbeat.diagnosis.diagnose": checks.diagnose,
    "celery_sqlbeat.embedded.folder_url": brokers.folder_url,
    "celery_sqlbeat.errors.BrokerAway": errors.BrokerUnavailable,
    "celery_sqlbeat.errors.DatabaseAway": errors.DatabaseUnavailable,
    "celery_sqlbeat.errors.JobGoes": errors.JobBeingDeleted,
    "celery_sqlbeat.errors.OtherBroker": errors.BrokerMismatch,
}


@pytest.mark.parametrize("path", FORMER)
def test_a_former_name_is_the_same_thing(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is FORMER[path]
