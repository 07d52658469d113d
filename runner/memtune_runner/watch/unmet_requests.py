"""Requests to a run beside its plan that it did not fulfil although it ended well."""

from __future__ import annotations

from memtune_runner.rank.settings import Settings


def larger_evaluation(settings: Settings, evaluation_batch: int | None) -> str:
    """The warning that the batches of the evaluation stayed larger than asked for; empty if they did not."""
    asked = settings.evaluation_batch
    if asked is None or evaluation_batch is None or evaluation_batch <= asked:
        return ""
    return (
        f"the evaluation took batches of {evaluation_batch}, where at most {asked} were asked for after one had run "
        "out of memory: let the script evaluate in batches of $MEMTUNE_EVALUATION_BATCH"
    )


def kept_memory(settings: Settings, steps: int) -> str:
    """The warning that a rehearsal made none of its ``steps`` with less memory; empty if it made one."""
    if settings.shrink is None or settings.is_probe or settings.shrink.after_step < steps:
        return ""
    after = settings.shrink.after_step
    return (
        f"resources.shrink takes memory after step {after}, and the training had only {steps}, so nothing was "
        "rehearsed: let afterStep be less than the steps of the training"
    )
