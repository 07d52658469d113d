"""A job's report as one self-contained HTML page: text, tables and charts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from memtune import __version__
from memtune.api.status import AttemptStatus, to_seconds, to_text
from memtune.controller.messages import ended, replaced_batch, trains
from memtune.controller.records import has_ended
from memtune.planning.cost import dollars
from memtune.units import counted, span, unit_of
from memtune_cli.input.job_view import JobView, error_ratio, measured_bytes, run_seconds
from memtune_cli.input.prometheus import Series
from memtune_cli.views import report_charts as charts
from memtune_cli.views import svg
from memtune_cli.views.candidates import Group, KnownPlan, Reckoned
from memtune_cli.views.importance import importances
from memtune_cli.views.next_step import next_step
from memtune_cli.views.render import visible_parts
from memtune_cli.views.report_style import STYLE


def html_page(
    view: JobView, plans: Sequence[KnownPlan], costs: Sequence[Reckoned], series: Sequence[Series], now: float
) -> str:
    """The whole page."""
    sections = (
        _tiles(view),
        _section("What happened", _timeline_rows(view)),
        _section("The prediction", _predicted(view)),
        _section("The plans that the job allows", _candidates(view, plans)),
        _section("Which knobs matter", _importances(plans)),
        _section("Predicted against measured", _measured(view)),
        _section("Memory over time", _over_time(view, series, now)),
        _section("What a million tokens cost", _costs_of_tokens(view)),
        _section("What it took, and what it would have taken without", _costs(costs)),
        _section("Attempts", _attempts(view, now)),
    )
    title = escape(view.title)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title} · MemTune</title>",
            f"<style>{STYLE}</style></head><body><main>",
            _header(view),
            *filter(None, sections),
            f"<footer>Written by memtune {__version__} at {to_text(now)} from the object as it was then.</footer>",
            "</main></body></html>\n",
        ]
    )


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{title}</h2>\n{inside}</section>" if inside else ""


def _header(view: JobView) -> str:
    lines = [f"<p class=sub>{escape(view.subject)}</p>"]
    if view.is_virtual:
        lines.append("<p class=note>Measured on the virtual GPU: the sizes and times are a rehearsal, no GPU's.</p>")
    if view.is_emulated:
        lines.append(
            "<p class=note>Run on an emulated GPU: memory is what torch's own allocator took there, speeds are "
            "predicted, and no model was trained.</p>"
        )
    phase = view.status.phase
    return "\n".join(
        [
            f"<header><p class=kind>MemoryTunedJob · {escape(view.place)}</p><h1>{escape(view.name)} "
            f'<span class="phase {phase.lower()}">{phase}</span></h1>',
            *lines,
            f"<p class=lead>{escape(view.status.message)}</p></header>",
        ]
    )


def _tiles(view: JobView) -> str:
    """The key numbers."""
    found = [error for run in view.runs if (error := error_ratio(run)) is not None]
    peaks = [measured_bytes(run) for run in view.runs if run.peak_bytes]
    speeds = [run.tokens_per_second for run in view.runs if run.tokens_per_second]
    tiles = [("Plan", view.status.plan.name if view.status.plan else "", "mono")]
    if peaks and view.usable_bytes:
        tiles.append(("Peak of the last run", f"{view.amount(peaks[-1])} of {view.amount(view.usable_bytes)}", ""))
    if speeds:
        tiles.append(("Tokens a second", f"{speeds[-1]:,}", ""))
    if prices := view.costs:
        tiles.append(("A million tokens", dollars(prices[-1].dollars), ""))
    if found:
        tiles.append(("Prediction error, median", f"{median(map(abs, found)):.1%}", ""))
    if view.status.probes:
        count, spent = len(view.status.own_probes), view.status.gpu_seconds_spent
        tiles.append(("Probing", f"{counted(count, 'run')}, {spent:,} GPU-s", ""))
    if view.status.attempts:
        tiles.append(("Recoveries", str(view.status.oom_retries + view.status.disruptions), ""))
    shown = (
        f'<div class=tile><b class="{look}">{escape(value)}</b><span>{name}</span></div>'
        for name, value, look in tiles
        if value
    )
    return f"<div class=tiles>{''.join(shown)}</div>"


def _timeline_rows(view: JobView) -> str:
    """The timeline: conditions and ends of runs, by time."""
    rows = [
        (each.last_transition_time, _CONDITIONS.get(each.type, 4), each.message, _LOOKS.get(each.type, "step"))
        for each in view.status.conditions
        if each.status == "True"
        and each.type != "Launched"  # its message is about the last attempt, its time is that of the first
    ]
    for run in view.trail:
        if isinstance(run, AttemptStatus) and run.started_at:
            rows.append((run.started_at, 3, trains(run, view.shrink), "step"))
        if has_ended(run):
            place = 1 if run.is_probe else 3
            rows.append((run.ended_at or "", place, ended(run), charts.look(view, run)))
    # Sorting is stable, so entries of the same time and rank stay in the order of the attempts.
    rows.sort(key=lambda each: (to_seconds(each[0]) or 0.0, each[1]))
    items = (
        f"<li class={look}><time>{escape(at.replace('T', ' ').rstrip('Z'))}</time><p>{escape(text)}</p></li>"
        for at, _, text, look in rows
    )
    return f"<ol class=chronicle>{''.join(items)}</ol>" if rows else ""


# The order of conditions within one second: probes end at 1, attempts start and end at 3.
_CONDITIONS = {"Predicted": 0, "Tuned": 2}
_LOOKS = {"Complete": "good", "Failed": "bad", "Stalled": "bad"}


def _predicted(view: JobView) -> str:
    prediction, peak = view.status.prediction, view.peak
    if prediction is None or peak is None:
        return ""
    lower, expected, upper = map(view.amount, peak.device)
    text = (
        f"<p><code>{escape(prediction.plan)}</code> was predicted to take {expected}, between {lower} and "
        f"{upper}, of the {view.amount(prediction.usable_bytes)} that the GPU has; most is in use in phase "
        f"{escape(prediction.peak_phase)}.</p>"
    )
    parts = (
        (f"background:{charts.colour(part.name)}", f"{part.name} {view.amount(part.bytes.expected)}")
        for part in visible_parts(peak, unit_of(prediction.usable_bytes))
    )
    return f"{text}{charts.components(view)}{_legend(parts)}"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    """The colour legend."""
    keys = " ".join(f"<span><i {svg.look_of(look)}></i>{escape(text)}</span>" for look, text in entries)
    return f"<p class=legend>{keys}</p>"


def _candidates(view: JobView, plans: Sequence[KnownPlan]) -> str:
    picture = charts.scatter(view, plans)
    if not picture:
        return ""
    counts = {group: sum(1 for each in plans if each.group is group) for group in Group}
    entries = (
        (charts.LOOKS[Group.FITS], f"{counts[Group.FITS]:,} fit"),
        (charts.LOOKS[Group.MAY_FIT], f"{counts[Group.MAY_FIT]:,} may fit: only a probe can tell"),
        (charts.LOOKS[Group.CANNOT_FIT], f"{counts[Group.CANNOT_FIT]:,} cannot fit"),
    )
    text = (
        f"<p>The job allows {len(plans):,} plans. Each point is one, where the model, corrected by every run of this "
        "job, expects it; rings are the probes by number, the filled one won."
        f"{' The line joins the measured plans that no other one beats in both objectives.' if view.front else ''}</p>"
    )
    return f"{text}{_legend(entries)}{picture}"


def _importances(plans: Sequence[KnownPlan]) -> str:
    found = importances(plans) if plans else []
    rows = (
        (
            f"<code>{each.knob}</code>",
            escape(", ".join(each.choices)),
            f"{each.memory:.0%}",
            f"{each.speed:.0%}",
        )
        for each in found
    )
    text = (
        "<p>How much of the differences between these plans each knob explains by itself: the variance between the "
        "means of its choices, over that of all plans. What knobs do only together is in none of the shares.</p>"
    )
    return text + _table(("knob", "choices", "of memory", "of speed"), rows, numbers=(2, 3)) if found else ""


_RUN_LOOKS = (
    ("predicted", "predicted"),
    ("good", "measured"),
    ("warn", "measured, too tight"),
    ("bad", "had and asked for when it ran out"),
)


def _measured(view: JobView) -> str:
    picture = charts.runs(view)
    if not picture:
        return ""
    errors = charts.errors(view)
    why = f"<p>{escape(view.why)}.</p>" if view.why else ""
    why += f"<p>Right of the dotted line less than the headroom of {view.headroom:.0%} stays free.</p>"
    after = (
        "<h3>Prediction error</h3><p>Measured over predicted, less 1: to the right more was used than predicted. Each "
        "prediction is the one that was made before its run, so that later ones know of earlier runs.</p>"
    )
    return f"{why}{_legend(_RUN_LOOKS)}{picture}{after + errors if errors else ''}"


def _over_time(view: JobView, series: Sequence[Series], now: float) -> str:
    picture = charts.memory(view, series, now)
    if not picture:
        return ""
    source = (
        "The lines are the fullest GPU of each attempt, from Prometheus; areas are the peaks of the runs' reports."
        if series
        else "Each area is the peak that a run reported, from its start to its end; the dashes are its prediction."
    )
    return f"<p>{source} Probes and attempts have times of their own.</p>{picture}"


def _costs_of_tokens(view: JobView) -> str:
    found, price = view.costs, view.status.gpu_hour_price
    if not found or price is None:
        return ""
    rows = (
        (each.what, f"<code>{escape(each.plan)}</code>", f"{each.tokens_per_second:,}", dollars(each.dollars))
        for each in found
    )
    text = f"<p>At {dollars(price)} a GPU-hour on {counted(view.world, 'GPU')}, by the speeds that are known.</p>"
    return text + _table(("", "plan", "tokens/s", "a million tokens"), rows, numbers=(2, 3))


def _costs(costs: Sequence[Reckoned]) -> str:
    rows = (
        (escape(each.what), f"{each.runs:,}", f"{each.gpu_seconds:,.0f}", span(each.gpu_seconds), escape(each.rule))
        for each in costs
    )
    head = ("", "runs or plans", "GPU-seconds", "as time of one GPU", "by which rule")
    text = (
        "<p>Only the probes were measured. The other lines are reckoned: what it would have taken to measure the plans "
        "that were left out as well, and to train again what relaunches found in a checkpoint.</p>"
    )
    return text + _table(head, rows, numbers=(1, 2, 3)) if costs else ""


def _attempts(view: JobView, now: float) -> str:
    if not view.status.attempts:
        return ""
    head = ("", "plan", "HBM", "tokens/s", "took", "came about by", "went on from", "outcome")
    rows = (_attempt_cells(view, attempt, now) for attempt in view.status.attempts)
    facts = [f"Relaunched {view.recoveries}."]
    facts += [f"Samples: {view.samples}."] if view.samples else []
    facts += [f"Batch: {batch}."] if (batch := replaced_batch(view.status, view.job)) else []
    facts += [f"Checkpoint: {view.checkpoint}."] if view.checkpoint else []
    facts.append(f"Next: {next_step(view)}.")
    return _table(head, rows, numbers=(2, 3, 4)) + "".join(f"<p>{escape(fact)}</p>" for fact in facts)


def _attempt_cells(view: JobView, attempt: AttemptStatus, now: float) -> tuple[str, ...]:
    seconds, measured = run_seconds(attempt, now), measured_bytes(attempt)
    resumed = f"{attempt.resumed_samples:,} samples" if attempt.resumed_samples else "a checkpoint"
    outcome = f"{view.outcome(attempt)}{f': {attempt.message}' if attempt.message else ''}"
    return (
        str(attempt.number),
        f"<code>{escape(attempt.plan)}</code>",
        view.amount(measured) if measured else "",
        f"{attempt.tokens_per_second:,}" if attempt.tokens_per_second else "",
        span(seconds) if seconds is not None else "",
        escape(attempt.rung or ("the same plan again" if attempt.number > 1 else "the probes")),
        "the start" if attempt.resume == "no" else resumed,
        escape(outcome),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if place in numbers else ''}>{cell}</{tag}>" for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"
