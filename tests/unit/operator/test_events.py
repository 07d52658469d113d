"""The events of a job, in the order in which `kubectl describe` shows them."""

from __future__ import annotations

from simulated_events import cluster_after_job_succeeded


def test_events_of_one_second_are_shown_as_the_story_that_they_tell() -> None:
    cluster = cluster_after_job_succeeded()
    # Event times have whole seconds, so events of one second are ordered by name.
    shown = [f"{told['reason']}: {told['message']}" for _, told in sorted(cluster.objects.items())]
    assert shown == cluster.events
    assert [line.partition(": ")[0] for line in shown] == [
        "Predicted",
        "ProbeBudget",
        "ProbeStarted",
        "ProbeEnded",
        "ProbeStarted",
        "ProbeEnded",
        "Measured",
        "Launched",
        "Succeeded",
    ]
