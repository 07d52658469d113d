"""The page of live views (`watch`, `run`): progress, probes or ranks, and recoveries."""

from __future__ import annotations

from memtune.api.status import RunStatus
from memtune.units import over, span
from memtune_cli.input.job_view import JobView, run_seconds
from memtune_cli.views.job_page import attempts, heading, memory_colour, probes, titled
from memtune_cli.views.ranks import Ranks, Reading
from memtune_cli.views.render import level_bar, seconds
from memtune_cli.views.screen import Screen

_MOST_RANKS = 16
# The width of the text beside a bar; a narrow screen only shows the peak.
_BESIDE_BAR, _PEAK_ALONE, _NARROW = 60, 36, 80


def live_page(screen: Screen, view: JobView, ranks: Ranks | None, now: float, trouble: str = "") -> list[str]:
    """The current page; ``trouble`` says why information is missing."""
    lines = ["", *heading(screen, view), ""]
    # Probes are not shown once the job trains.
    lines += attempts(screen, view, now) or probes(screen, view)
    run = view.live_run
    if run is not None and run.started_at:
        lines += ["", *_run(screen, view, run, ranks if ranks and ranks.run == run.name else None, now)]
    return [*lines, "", screen.paint(trouble, "33")] if trouble else lines


def _run(screen: Screen, view: JobView, run: RunStatus, ranks: Ranks | None, now: float) -> list[str]:
    """The active run and the ranks that reported."""
    kind = "Probe" if run.is_probe else "Attempt"
    since = run_seconds(run, now)
    facts = [f"running for {span(since)}"] if since is not None else []
    lines = titled(screen, f"{kind} {run.number}", ", ".join([*facts, *(speed(ranks) if ranks else ())]))
    if ranks is None or not ranks.latest:
        return lines
    fullest = sorted(ranks.latest, key=lambda each: (-each.peak_bytes, each.rank))[:_MOST_RANKS]
    is_narrow = screen.width < _NARROW
    width = max(12, min(40, screen.width - (_PEAK_ALONE if is_narrow else _BESIDE_BAR)))
    head = f"  rank  {'HBM in use':<{width + 11}}{'peak':>16}"
    lines.append(screen.bold(head if is_narrow else f"{head}  {'fragmentation':>13}  retries"))
    for each in sorted(fullest, key=lambda each: each.rank):
        memory = _rank_memory(screen, view, each, width)
        lines.append(memory if is_narrow else memory + _rank_health(each))
    if left := len(ranks.latest) - len(fullest):
        lines.append(
            screen.dim(f"  and {left} more, none with a higher peak than {view.amount(fullest[-1].peak_bytes)}")
        )
    return lines


def speed(ranks: Ranks) -> list[str]:
    """Progress and speed of the ranks; empty for ranks that did not answer the last poll."""
    if not ranks.latest:
        return []
    facts = [f"step {ranks.steps:,}"] if ranks.steps else []
    if ranks.step_seconds:
        facts.append(f"{seconds(ranks.step_seconds)} a step")
    if ranks.tokens_per_second:
        facts.append(f"{ranks.tokens_per_second:,.0f} tokens/s")
    return facts


def _rank_memory(screen: Screen, view: JobView, each: Reading, width: int) -> str:
    total = each.total_bytes or view.usable_bytes
    bar = level_bar(screen, each.used_bytes, total, width, memory_colour(each.used_bytes, total, view.headroom))
    return f"  {each.rank:>4}  {bar} {view.amount(each.used_bytes):>10}{over(each.peak_bytes, total):>16}"


def _rank_health(each: Reading) -> str:
    share = f"{each.fragmentation:.1%}" if each.fragmentation is not None else ""
    return f"  {share:>13}  {each.retries:>7,}"
