"""What jobs measured, kept for later ones: memory outside the allocator, and probe results, in one ConfigMap.

A cluster has one in each namespace, `memtune run` has it in a file. Entries are validated; at worst a predicted
interval is wrong, which the first probe shows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from memtune.api import Job
from memtune.api.status import ProbeStatus
from memtune.controller import Observed, only_product
from memtune.controller.stored_measurements import read_probes, to_json
from memtune.memory.measured_overhead import JobOverhead, MeasuredOverhead, read_measured_overhead
from memtune.wire.names import short_hash
from memtune_operator.config_map import LONGEST_ENTRY, entry, with_entry
from memtune_operator.pods.kinds import Manifest

NAME = "memtune-measurements"
Subject = dict[str, str | int]
_KEY_CHARACTERS = 32
# The longest label value.
_LONGEST_PRODUCT = 63
# Unbounded names are cut to a readable length.
_SHOWN_IMAGE = 256
# The fields of a job that its probe measurements depend on.
_ASKED = {"model", "training", "resources", "template", "integration"}
# Room for the rest of the entry beside the probes.
_ROOM = 1024
_log = logging.getLogger("memtune")


def product_of(job: Job, observed: Observed) -> str:
    """The GPU product of the job's runs; empty if it is not known yet."""
    named = job.spec.resources.gpu_product or observed.status.get("gpuProduct") or only_product(observed.nodes or ())
    return str(named)[:_LONGEST_PRODUCT]


def overhead_subject(job: Job, image: str, product: str) -> Subject:
    """The cache key of the memory outside the allocator: everything it depends on."""
    resources = job.spec.resources
    return {
        "image": image,
        "device": resources.device,
        "gpuProduct": product,
        "gpuResource": resources.gpu_resource,
        "world": resources.world,
    }


def cached_overhead(kept: Manifest | None, of: Subject) -> MeasuredOverhead:
    """The cached measurements of a subject; empty if the entry is invalid."""
    found = entry(kept, _key(of))
    if not found:
        return MeasuredOverhead()
    try:
        return read_measured_overhead(found)
    except ValueError as error:
        _log.warning("%s, entry %s is passed over: %s", NAME, _key(of), error)
        return MeasuredOverhead()


def with_overhead(kept: Manifest | None, namespace: str, of: Subject, new: JobOverhead) -> Manifest:
    """The ConfigMap with the measurements of one more job, about 70 bytes each."""
    known = cached_overhead(kept, of).having(new)
    # For readers: the key is a hash.
    shown = {**of, "image": str(of["image"])[:_SHOWN_IMAGE]}
    return with_entry(kept, NAME, namespace, _key(of), {"of": shown, **known.to_json()}, known.newest_at)


def probes_subject(job: Job, image: str, product: str) -> Subject:
    """The cache key of probe results: everything that the memory and speed of a job's plans depend on."""
    spec = job.spec.unpriced.model_dump(mode="json", by_alias=True, include=_ASKED, exclude_defaults=True)
    asked = json.dumps([spec, job.spec.tuning.probe_steps], sort_keys=True, default=str)
    return {**overhead_subject(job, image, product), "probesOf": short_hash(asked, _KEY_CHARACTERS)}


def cached_probes(kept: Manifest | None, of: Subject) -> tuple[ProbeStatus, ...]:
    """The cached probes of the newest job of a subject; none if the entry is invalid."""
    found = entry(kept, _key(of))
    if not found:
        return ()
    try:
        return read_probes(found.get("probes"))
    except ValueError as error:
        _log.warning("%s, entry %s is passed over: %s", NAME, _key(of), error)
        return ()


def with_probes(kept: Manifest | None, namespace: str, of: Subject, probes: Sequence[ProbeStatus], at: int) -> Manifest:
    """The ConfigMap with the probes of the newest job in place of the older ones, about 300 bytes each."""
    shown = {**of, "image": str(of["image"])[:_SHOWN_IMAGE]}
    entries = [to_json(probe) for probe in probes]
    while len(json.dumps(entries)) > LONGEST_ENTRY - _ROOM:
        entries = entries[1:]
    return with_entry(kept, NAME, namespace, _key(of), {"of": shown, "probes": entries}, at)


def _key(of: Subject) -> str:
    return short_hash(json.dumps(of, sort_keys=True), _KEY_CHARACTERS)
