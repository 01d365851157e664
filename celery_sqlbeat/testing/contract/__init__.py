"""The rules that every store keeps, as tests that speak only its verbs and a clock.

Each module has the rules of one subject. A test's name, or its docstring, states the rule.
"""

from celery_sqlbeat.testing.contract.cadence import CadenceContract
from celery_sqlbeat.testing.contract.cancel import CancelContract
from celery_sqlbeat.testing.contract.cancel_races import CancelRaceContract
from celery_sqlbeat.testing.contract.claims import ClaimContract
from celery_sqlbeat.testing.contract.deadlines import DeadlineContract
from celery_sqlbeat.testing.contract.deletion import DeletionContract
from celery_sqlbeat.testing.contract.extra_slots import ExtraSlotContract
from celery_sqlbeat.testing.contract.heartbeats import HeartbeatContract
from celery_sqlbeat.testing.contract.history import HistoryContract
from celery_sqlbeat.testing.contract.jobs import JobContract
from celery_sqlbeat.testing.contract.keys import KeyContract
from celery_sqlbeat.testing.contract.late_starts import LateStartContract
from celery_sqlbeat.testing.contract.living import LivingReleaseContract
from celery_sqlbeat.testing.contract.locks import LockContract
from celery_sqlbeat.testing.contract.nodes import NodeContract
from celery_sqlbeat.testing.contract.one_off_history import OneOffHistoryContract
from celery_sqlbeat.testing.contract.one_offs import OneOffContract
from celery_sqlbeat.testing.contract.outcomes import OutcomeContract
from celery_sqlbeat.testing.contract.overlap import OverlapContract
from celery_sqlbeat.testing.contract.publishing import PublishingContract
from celery_sqlbeat.testing.contract.races import RaceContract
from celery_sqlbeat.testing.contract.reclaim import ReclaimContract
from celery_sqlbeat.testing.contract.recovery import RecoveryContract
from celery_sqlbeat.testing.contract.releases import ReleaseContract
from celery_sqlbeat.testing.contract.replacing import ReplacingContract
from celery_sqlbeat.testing.contract.starts import StartContract
from celery_sqlbeat.testing.contract.unknown_tasks import UnknownTaskContract
from celery_sqlbeat.testing.contract.upkeep import UpkeepContract


class StoreContract(
    ClaimContract,
    StartContract,
    LateStartContract,
    HeartbeatContract,
    OutcomeContract,
    CadenceContract,
    OneOffContract,
    OneOffHistoryContract,
    KeyContract,
    CancelContract,
    CancelRaceContract,
    PublishingContract,
    UnknownTaskContract,
    ReclaimContract,
    OverlapContract,
    ReplacingContract,
    DeadlineContract,
    ExtraSlotContract,
    JobContract,
    DeletionContract,
    HistoryContract,
    NodeContract,
    LockContract,
    UpkeepContract,
    ReleaseContract,
    LivingReleaseContract,
    RecoveryContract,
    RaceContract,
):
    """All rules. Subclass it, and give it a fixture `make_store`.

    It returns a function, from a namespace to a store of it with connections of its own. A fixture
    `set_clock` may return a function that sets the clock of all these stores; without one the tests
    that need a long time, or a certain instant, are skipped.
    """
