"""Parsing a job: a valid one, and each field wrong in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from job_with_every_field import WHOLE, Node, problems, put
from schema_violations import wrong_values

from memtune.api import Job, load_job
from memtune.api.crd import object_schema


def dumped(job: Job) -> Node:
    return job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def leaves(schema: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Yield every field of the schema that is not a block."""
    if "properties" in schema:
        for name, field in schema["properties"].items():
            yield from leaves(field, f"{path}.{name}")
    else:
        yield path, schema


FIELDS = list(leaves(object_schema()["properties"]["spec"], "spec"))
WRONG: dict[str, list[Any]] = {}
for _path, _value in wrong_values(object_schema()["properties"]["spec"], "spec"):
    WRONG.setdefault(_path, []).append(_value)


def test_a_complete_job_round_trips() -> None:
    job = load_job(WHOLE)
    assert dumped(job) == WHOLE["spec"]
    assert (job.metadata.name, job.metadata.namespace) == ("whole", "team-a")


def test_the_whole_job_covers_every_field_but_the_alternatives() -> None:
    def names(block: Node, path: str) -> Iterator[str]:
        for name, value in block.items():
            foreign = name in ("template", "hfConfig")
            yield from names(value, f"{path}.{name}") if isinstance(value, dict) and not foreign else [f"{path}.{name}"]

    missing = {path for path, _ in FIELDS} - set(names(WHOLE["spec"], "spec"))
    assert missing == {
        "spec.model.hfConfig",
        "spec.model.factory",
        "spec.training.targetLength",
        "spec.model.factoryArguments",
        "spec.model.architecture.image.size",
        "spec.model.architecture.image.patchSize",
        "spec.model.architecture.image.channels",
        "spec.checkpoint.volume.persistentVolumeClaim.claimName",
        "spec.checkpoint.volume.hostPath.path",
    }


def test_a_short_job_takes_the_defaults_of_the_design() -> None:
    spec = {"model": {"hfConfig": {}}, "training": {"globalBatchSize": 8, "sequenceLength": 1}}
    job = load_job({**WHOLE, "spec": spec})
    assert job.spec.resources.gpu_resource == "nvidia.com/gpu"
    assert job.spec.tuning.headroom_ratio == 0.06
    assert job.spec.tuning.space.zero_stages == (0, 1, 2, 3)
    assert job.spec.retry.max_oom_retries == 4
    assert job.max_gpu_seconds == 600


def test_gpu_seconds_default_to_600_for_each_gpu() -> None:
    job = load_job(put(WHOLE, "spec.tuning.maxGpuSeconds", None))
    assert job.max_gpu_seconds == 600 * 16


def test_null_means_left_out_except_in_foreign_objects() -> None:
    job = load_job(put(put(WHOLE, "spec.tuning.headroom", None), "spec.checkpoint", None))
    assert job.spec.tuning.headroom == "6%"
    assert job.spec.checkpoint is None
    assert job.spec.template == WHOLE["spec"]["template"]


@pytest.mark.parametrize("path", WRONG)
def test_every_field_wrong_in_turn_is_named(path: str) -> None:
    for value in WRONG[path]:
        found = problems(put(WHOLE, path, value))
        assert any(name == path or name.startswith(f"{path}[") for name in found), (value, found)


def test_an_unknown_field_is_refused_in_every_block() -> None:
    for path in sorted({path.rpartition(".")[0] for path, _ in FIELDS}):
        found = problems(put(WHOLE, f"{path}.zzz", 1))
        assert found[f"{path}.zzz"].startswith("this field is unknown; allowed are ")
