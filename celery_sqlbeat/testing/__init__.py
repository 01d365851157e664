"""Help to test what is built on this package. It is imported without pytest; its names need it.

`StoreContract` judges a store: a test class that speaks only the verbs of the store protocol.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_sqlbeat.testing.contract import StoreContract

__all__ = ["StoreContract"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # Before the first import: so that a failed assert of the contract says what was compared.
    pytest.register_assert_rewrite(f"{__name__}.contract")
    from celery_sqlbeat.testing import contract

    return getattr(contract, name)
