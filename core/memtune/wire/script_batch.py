"""Messages for a script that uses its own batch instead of the plan's."""

from __future__ import annotations

from collections.abc import Collection

from memtune.plans.plan import Plan
from memtune.wire.applied import BATCH_FIELDS, mismatch, shortened_accumulation
from memtune.wire.report import Applied


def own_batch(plan: Plan, applied: Applied, world: int, is_probe: bool) -> str:
    """The script's batch, the job's, and where to change each; empty if the plan's batch was observed.

    It is short, since the message of a run is cut.
    """
    seen, wanted, size = applied.samples_per_step, plan.global_batch(world), applied.micro_batch
    # A probe may be shortened.
    shortened = plan.micro_batch * world * shortened_accumulation(plan) if is_probe else wanted
    if seen is not None and seen not in (wanted, shortened):
        own = f", tuning.space.microBatch [{size}]" if size else ""
        return (
            f"the script's batch is {seen}, training.globalBatchSize {wanted}: read $MEMTUNE_MICRO_BATCH and "
            f"$MEMTUNE_ACCUMULATION, or set globalBatchSize {seen}{own}"
        )
    if size is not None and size != plan.micro_batch:
        return (
            f"applied.microBatch is {size}, but the plan asks for {plan.micro_batch}: read $MEMTUNE_MICRO_BATCH in the "
            f"script, or set tuning.space.microBatch [{size}]"
        )
    return ""


def difference(
    plan: Plan, applied: Applied, world: int, is_probe: bool, integration: str, opened: Collection[str] = ()
) -> str:
    """One sentence about every difference between a run and its plan; empty if there is none.

    If a script keeps its own batch, both batches come first, since the message of a run is cut. ``opened`` is as in
    `mismatch`.
    """
    own = own_batch(plan, applied, world, is_probe) if integration == "env" else ""
    without = BATCH_FIELDS if own else ()
    found = mismatch(plan, applied, world, is_probe, integration=integration, without=without, opened=opened)
    return "; ".join(filter(None, (own, found)))
