"""Submit one-offs in the shop's own transaction: they exist if it commits."""

from collections.abc import Sequence
from typing import Any

from celery_sqlbeat.model.one_offs import OneOff, Submitted
from celery_sqlbeat.store.protocol import Store
from celery_sqlbeat.store.sealed import unsealed
from celery_sqlbeat.store.sql.foreign import session_in
from celery_sqlbeat.store.sql.one_offs import add


def submit_in(
    store: Store, one_offs: Sequence[OneOff], connection: Any = None, using: str | None = None
) -> dict[str, Submitted]:
    """Add one-offs that nobody has claimed on a connection of the shop; commit nothing.

    `using`: the alias of a database of Django, in place of a connection.
    """
    plain, sealed = unsealed(store, one_offs)
    return add(session_in(plain, connection, using), sealed, store.namespace, "", 0.0)
