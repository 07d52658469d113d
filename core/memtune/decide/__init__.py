"""The heart of the operator: from a job, what was seen of it and the time, to what happens next. Pure and total.

    decision = decide(job, observed, now)

The shell observes, calls `decide`, writes `decision.status` if it differs from what it read (conditionally), and then
acts. `Observed` and `Decision` say exactly what is expected on either side.
"""

from memtune.decide.decision import Decision, Deletion, Event
from memtune.decide.machine import decide, refuse
from memtune.decide.observed import Node, Observed, Owned, Refusal, only_product

__all__ = ["Decision", "Deletion", "Event", "Node", "Observed", "Owned", "Refusal", "decide", "only_product", "refuse"]
