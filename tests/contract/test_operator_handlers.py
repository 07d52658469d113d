"""What kopf is told when it starts."""

from __future__ import annotations

import asyncio
from typing import Any

import kopf
import pytest

from memtune_operator import handlers
from memtune_operator.policy import Policy
from memtune_operator.settings import Settings


def test_kopf_is_told_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself it asks for the user's name, and the user of the operator's image has none."""
    told: dict[str, Any] = {}

    async def operator(**options: Any) -> None:
        told.update(options)

    monkeypatch.setattr(kopf, "operator", operator)
    asyncio.run(handlers._listen(kopf.OperatorRegistry(), Settings("runner:1", Policy(), identity="memtune-0")))
    assert told["identity"] == "memtune-0"
