"""The page of `memtune status`, and the parts of it that live views share."""

from __future__ import annotations

from collections.abc import Iterable

from memtune.api.status import AttemptStatus, RunStatus, to_seconds
from memtune.controller.messages import replaced_batch
from memtune.controller.records import ended_as
from memtune.controller.stale_probes import stale_probes
from memtune.controller.verdict import Verdict
from memtune.planning.cost import dollars
from memtune.units import counted, span
from memtune_cli.input.job_view import JobView, error_ratio, measured_bytes, run_seconds
from memtune_cli.views.next_step import next_step
from memtune_cli.views.render import Column, level_bar, memory_bar, table, wrapped
from memtune_cli.views.screen import Screen

GREEN, YELLOW, RED, BLUE = "32", "33", "31", "34"
_PHASE_COLOURS = {"Succeeded": GREEN, "Failed": RED, "Recovering": YELLOW, "Suspended": YELLOW}
_WIDEST_BAR, _NARROWEST_BAR = 40, 12
# The width of the text beside a memory bar, from indent to outcome.
_BESIDE_BAR = 62


def page(screen: Screen, view: JobView, now: float) -> list[str]:
    """The whole page."""
    parts = (
        heading(screen, view),
        _conditions(screen, view, now),
        _prediction(screen, view),
        emulations(screen, view),
        probes(screen, view),
        _front(screen, view),
        attempts(screen, view, now),
        _costs(screen, view),
        _facts(screen, view),
    )
    return [line for number, part in enumerate(filter(None, parts)) for line in ([""] if number else []) + part]


def heading(screen: Screen, view: JobView) -> list[str]:
    """The job's name, phase and current activity."""
    phase = screen.paint(view.status.phase, f"{_PHASE_COLOURS.get(view.status.phase, BLUE)};1")
    if view.obstacle and not view.is_over:
        phase += f" {screen.paint(view.obstacle.type, f'{YELLOW};1')}"
    lines = [f"{screen.bold(view.title)}  {phase}"]
    if view.subject:
        lines += wrapped(screen, f"  {view.subject}", 2)
    return lines + wrapped(screen, f"  {view.status.message}", 2)


def _conditions(screen: Screen, view: JobView, now: float) -> list[str]:
    """Each condition, with its message unless it is shown elsewhere on the page."""
    if not view.status.conditions:
        return []
    is_told = {"Predicted": view.peak is not None, "Tuned": bool(view.why)}
    lines = [screen.bold("Conditions")]
    for each in view.status.conditions:
        since = to_seconds(each.last_transition_time)
        age = span(max(now - since, 0.0)) if since is not None else ""
        message = "" if is_told.get(each.type) or each.message == view.status.message else f": {each.message}"
        lines += wrapped(screen, f"  {each.type:<10}{each.status:<6}{age:>7}  {each.reason}{message}", 27)
    return lines


def _prediction(screen: Screen, view: JobView) -> list[str]:
    prediction, peak = view.status.prediction, view.peak
    if prediction is None or peak is None:
        return []
    lower, expected, upper = map(view.amount, peak.device)
    speed = "" if view.is_virtual else f"; {prediction.tokens_per_second:,} tokens/s"
    text = (
        f"{prediction.plan}: {expected} ({lower.split()[0]}–{upper.split()[0]}) of "
        f"{view.amount(prediction.usable_bytes)}, most in {prediction.peak_phase}{speed}"
    )
    bar = memory_bar(screen, peak, prediction.usable_bytes) if peak.components else []
    return [*titled(screen, "Prediction", text), *bar]


def emulations(screen: Screen, view: JobView) -> list[str]:
    """Predicted and emulated memory of each emulated probe."""
    if not view.status.emulations:
        return []
    lines = titled(screen, "Emulated probes", "without a GPU; what lies outside of the allocator is an estimate")
    for record in view.status.emulations:
        lines += _run_bars(screen, view, record)
        if record.verdict not in (None, "succeeded", "device-oom"):
            lines += wrapped(screen, f"      {record.message}", 6)
    return lines


def probes(screen: Screen, view: JobView) -> list[str]:
    """The progress of probing, and predicted and measured memory of each probe."""
    found = view.budget
    if found is None and not view.status.probes:
        return []
    lines = titled(screen, "Probes", _progress(view))
    if found and found.most > found.done:
        lines.append(f"  {level_bar(screen, found.done, found.most, _WIDEST_BAR, BLUE)}")
    for probe in view.status.probes:
        lines += _run_bars(screen, view, probe)
    return lines + wrapped(screen, f"  {view.why}", 2) if view.why else lines


def _front(screen: Screen, view: JobView) -> list[str]:
    """The Pareto front, for jobs with two objectives."""
    if not view.front:
        return []
    columns = [Column(""), Column("plan", right=False), Column("HBM"), Column("tokens/s"), Column("", right=False)]
    rows = [
        [
            str(probe.number),
            probe.plan,
            view.amount(measured_bytes(probe)),
            f"{probe.tokens_per_second:,}" if probe.tokens_per_second else "not measured",
            "launched" if view.is_winner(probe) else "",
        ]
        for probe in view.front
    ]
    title = titled(screen, "Front", "no other measured plan is both faster and smaller")
    return title + table(screen, columns, rows)


def _progress(view: JobView) -> str:
    found = view.budget
    if found is None:
        return ""
    allowed = f"at most {found.most}" if found.most > found.done else f"{found.allowed}"
    plans = counted(view.measured_plans, "plan")
    known = len(view.status.probes) - len(view.status.own_probes)
    earlier = f", {known} more by earlier jobs" if known else ""
    return (
        f"{found.done} of {allowed} made{earlier}, {plans} measured, "
        f"{found.spent_seconds:,} of {found.allowed_seconds:,} GPU-seconds spent"
    )


def _run_bars(screen: Screen, view: JobView, run: RunStatus) -> list[str]:
    """Bars of predicted and measured memory against the GPU's."""
    width = max(_NARROWEST_BAR, min(_WIDEST_BAR, screen.width - _BESIDE_BAR))
    full, measured = view.usable_by(run), measured_bytes(run)
    mark = screen.paint("*" if view.is_winner(run) else " ", f"{GREEN};1")
    name = screen.bold(run.plan) if view.is_winner(run) else run.plan
    speed = f"  {run.tokens_per_second:,} tokens/s" if run.tokens_per_second else ""
    is_stale = run in stale_probes(view.status.probes)
    speed += f"  by job {run.measured_by}{', stale' if is_stale else ''}" if run.measured_by else ""
    lines = [f" {mark}{run.number:>2}  {name}  {screen.paint(view.outcome(run), _outcome_colour(run, view))}{speed}"]
    if run.predicted_bytes and full:
        bar = level_bar(screen, run.predicted_bytes, full, width, BLUE)
        lines.append(f"      predicted {bar} {view.amount(run.predicted_bytes):>10}")
    if measured and full:
        error = error_ratio(run)
        beside = f" {error:+.1%}" if error is not None else " at least" if run.demanded_bytes else ""
        bar = level_bar(screen, measured, full, width, memory_colour(measured, full, view.headroom))
        lines.append(f"      {'emulated ' if run.emulated else 'measured '} {bar} {view.amount(measured):>10}{beside}")
    return lines


def memory_colour(size_bytes: float, full_bytes: float, headroom: float) -> str:
    """The colour for how close an amount is to the limit."""
    if size_bytes > full_bytes:
        return RED
    return YELLOW if size_bytes > full_bytes * (1 - headroom) else GREEN


def _outcome_colour(run: RunStatus, view: JobView) -> str:
    if ended_as(run, Verdict.SUCCEEDED):
        return YELLOW if view.is_tight(run) else GREEN
    return RED if run.verdict else ""


def attempts(screen: Screen, view: JobView, now: float) -> list[str]:
    """The attempts: why each failed, and what changed for the next."""
    if not view.status.attempts:
        return []
    columns = [
        Column("", right=False),
        Column("plan", right=False),
        Column("HBM"),
        Column("tokens/s", weight=2),
        Column("took", weight=1),
        Column("by", right=False, weight=3),
        Column("outcome", right=False),
    ]
    rows = [_attempt_row(view, attempt, now) for attempt in view.status.attempts]
    lines = [*titled(screen, "Attempts", f"relaunched {view.recoveries}"), *table(screen, columns, rows)]
    died = (attempt for attempt in view.status.attempts if attempt.verdict not in (None, "succeeded"))
    return lines + [line for attempt in died for line in _last_words(screen, attempt)]


def _attempt_row(view: JobView, attempt: AttemptStatus, now: float) -> list[str]:
    seconds, measured = run_seconds(attempt, now), measured_bytes(attempt)
    rung = attempt.rung or ("the same plan" if attempt.number > 1 else "")
    return [
        str(attempt.number),
        attempt.plan,
        view.amount(measured) if measured else "",
        f"{attempt.tokens_per_second:,}" if attempt.tokens_per_second else "",
        span(seconds) if seconds is not None else "",
        rung,
        view.outcome(attempt),
    ]


def _last_words(screen: Screen, attempt: AttemptStatus) -> Iterable[str]:
    return wrapped(screen, f"  attempt {attempt.number}: {attempt.message}", 4) if attempt.message else ()


def _costs(screen: Screen, view: JobView) -> list[str]:
    """The cost per million tokens at each known speed."""
    found, price = view.costs, view.status.gpu_hour_price
    if not found or price is None:
        return []
    columns = [Column("", right=False), Column("plan", right=False), Column("tokens/s", weight=1), Column("cost")]
    rows = [[each.what, each.plan, f"{each.tokens_per_second:,}", dollars(each.dollars)] for each in found]
    text = f"of a million tokens, at {dollars(price)} a GPU-hour on {counted(view.world, 'GPU')}"
    return [*titled(screen, "Cost", text), *table(screen, columns, rows)]


def _facts(screen: Screen, view: JobView) -> list[str]:
    """The checkpoint to resume from, and the next step."""
    facts = [
        (name, text)
        for name, text in (
            ("Samples", view.samples),
            ("Batch", replaced_batch(view.status, view.job)),
            ("Checkpoint", view.checkpoint),
        )
        if text
    ]
    return [line for name, text in [*facts, ("Next", next_step(view))] for line in titled(screen, name, text)]


def titled(screen: Screen, title: str, text: str) -> list[str]:
    """A section title with a sentence beside it."""
    first, *rest = wrapped(screen, f"{title}  {text}", 2)
    return [first.replace(title, screen.bold(title), 1), *rest]
