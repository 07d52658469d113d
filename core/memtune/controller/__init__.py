"""The heart of the operator: from a job, what was seen of it and the time, to what happens next. Pure and total.

    decision = decide(job, observed, now)

The backend observes, calls `decide`, writes `decision.status` if it differs from what it read (conditionally), and then
acts. `Observed` and `Decision` say exactly what is expected on either side.
"""

from memtune.controller.context import Decision, Deletion, JobEvent
from memtune.controller.observation import Node, Observed, Owned, Refusal, only_product
from memtune.controller.state_machine import decide, refuse

__all__ = [
    "Decision",
    "Deletion",
    "JobEvent",
    "Node",
    "Observed",
    "Owned",
    "Refusal",
    "decide",
    "only_product",
    "refuse",
]
