"""The settings of kopf and Prometheus at startup."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import kopf
import pytest

from memtune_operator import handlers
from memtune_operator.kubernetes.backend import KubernetesBackend
from memtune_operator.kubernetes.client import Client
from memtune_operator.metrics import Metrics
from memtune_operator.pods.security_policy import Policy
from memtune_operator.settings import Settings


def test_kopf_has_the_operators_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it asks for the user's name, and the user of the operator's image has none."""
    told: dict[str, Any] = {}

    async def operator(**options: Any) -> None:
        told.update(options)

    monkeypatch.setattr(kopf, "operator", operator)
    asyncio.run(handlers._listen(kopf.OperatorRegistry(), Settings("runner:1", Policy(), identity="memtune-0")))
    assert told["identity"] == "memtune-0"


def test_the_working_replica_is_the_leader_in_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(handlers, "_listen", nothing)
    monkeypatch.setattr(KubernetesBackend, "follow", nothing)
    settings, metrics = Settings("runner:1", Policy(), identity="memtune-0"), Metrics()
    asyncio.run(handlers._work(cast("Client", None), settings, metrics))
    assert metrics.registry.get_sample_value("memtune_operator_leader") == 1
