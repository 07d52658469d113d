"""The trainer's host memory in the template, whose shape the API server does not validate."""

from __future__ import annotations

from typing import Any

import pytest
from small_jobs import make_job, template

from memtune.api import to_workload
from memtune.api.container import TrainerMemory, trainer_memory
from memtune.gpus.gpu import GPUS
from memtune.units import GIB


def memory(found: Any) -> TrainerMemory:
    return trainer_memory(make_job(template=found))


def test_request_and_limit_are_those_of_the_container_that_trains() -> None:
    asking = template(requests={"memory": "8Gi"}, limits={"memory": "64Gi"})
    asking["spec"]["containers"].insert(0, {"name": "proxy", "resources": {"limits": {"memory": "1Gi"}}})
    assert memory(asking) == TrainerMemory(8 * GIB, 64 * GIB)
    assert to_workload(make_job(template=asking), GPUS["h100-80gb"]).host_limit_bytes == 64 * GIB


def test_a_limit_alone_is_the_request_too() -> None:
    assert memory(template(limits={"memory": "64Gi"})).asked_bytes == 64 * GIB
    assert memory(template(requests={"memory": "8Gi"}, limits={"memory": "64Gi"})).asked_bytes == 8 * GIB


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"spec": None},
        {"spec": 3},
        {"spec": {"containers": {}}},
        {"spec": {"containers": ["a"]}},
        {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}},
        template(),
        template(limits=3),
        template(limits={"memory": "much"}),
        template(limits={"memory": None}),
    ],
)
def test_invalid_memory_is_read_as_unknown(found: Any) -> None:
    assert memory(found) == TrainerMemory(0, 0)
