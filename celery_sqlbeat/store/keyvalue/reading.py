"""Read many rows, in parts, so that no answer keeps a server from others for long."""

from collections.abc import Sequence

from celery_sqlbeat.store.keyvalue.rows import Place, Row
from celery_sqlbeat.store.keyvalue.units import parts


def read_rows(place: Place, table: str, ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows that are there, by id, in the order of the ids."""
    rows: dict[str, Row] = {}
    for part in parts(ids):
        for (_, row_id), versioned in place.read([(table, row_id) for row_id in part]).rows.items():
            if versioned.row is not None:
                rows[row_id] = versioned.row
    return rows
