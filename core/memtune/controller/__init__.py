"""Decides what happens next to a job, from the job, what was observed and the time. Pure and total.

    decision = decide(job, observed, now)

The backend observes, calls `decide`, writes `decision.status` conditionally if it changed, and then acts. `Observed`
and `Decision` document both sides of this contract.
"""

from memtune.controller.context import Decision, Deletion, JobEvent
from memtune.controller.observation import Blocker, Node, Observed, Owned, only_product
from memtune.controller.state_machine import decide, refuse

__all__ = [
    "Blocker",
    "Decision",
    "Deletion",
    "JobEvent",
    "Node",
    "Observed",
    "Owned",
    "decide",
    "only_product",
    "refuse",
]
