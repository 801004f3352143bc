"""Arguments, kept apart from what a body makes of them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from safewrite.core.canonical import Uncanonical, canonical


def apart(value: Any) -> Any:
    """Return data as it is now, whatever a body makes of it later; what is no data, such as a client, as it is."""
    if value is None or isinstance(value, str | int | float):
        return value
    try:
        canonical(value)
    except Uncanonical:
        return value
    return deepcopy(value)
