"""The charts of a job's report, drawn from its status. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api.status import RunStatus, to_seconds
from memtune.controller.records import OUT_OF_MEMORY, ended_as
from memtune.controller.verdict import Verdict
from memtune.units import GIB, MIB, unit_of
from memtune_cli.input.job_view import JobView, error_ratio, measured_bytes
from memtune_cli.input.prometheus import Series
from memtune_cli.views import svg
from memtune_cli.views.candidates import Group, KnownPlan
from memtune_cli.views.plot import COMPONENT_COLOURS, OTHER_COLOUR
from memtune_cli.views.render import visible_parts
from memtune_cli.views.svg import Frame

_WIDTH = 960.0
_ROW = 46.0
# Points closer than this are merged.
_CELL = 4
LOOKS = {Group.FITS: "fits", Group.MAY_FIT: "mayfit", Group.CANNOT_FIT: "cannot"}
_SERIES_LOOKS = ("series0", "series1", "series2", "series3", "series4", "series5")
_BAND = 0.15


def components(view: JobView) -> str:
    """Predicted peak memory as a bar, with its interval and the GPU's limit."""
    prediction, peak = view.status.prediction, view.peak
    if prediction is None or peak is None:
        return ""
    frame = Frame(10, 34, _WIDTH - 10, 96)
    full = max(peak.device.upper, prediction.usable_bytes) * 1.02
    scale = frame.across(0, full)
    parts = svg.x_axis(frame, scale, _ticks(full), f"{_unit(full)} on each GPU")
    start = 0.0
    for part in visible_parts(peak, unit_of(prediction.usable_bytes)):
        size, tooltip = part.bytes.expected, f"{part.name}: {view.amount(part.bytes.expected)}"
        look = f"fill:{colour(part.name)}"
        parts.append(svg.box(scale(start), frame.top + 6, scale(size) - scale(0) - 1, 44, look, tooltip))
        if scale(size) - scale(0) > 7.2 * len(part.name):
            parts.append(svg.words(scale(start) + 7, frame.top + 32, part.name, "inbar"))
        start += size
    middle = frame.top + 57
    parts.append(svg.line(scale(peak.device.lower), middle, scale(peak.device.upper), middle, "interval"))
    parts += [svg.line(scale(end), middle - 4, scale(end), middle + 4, "interval") for end in peak.device[::2]]
    parts += _limit(frame, scale(prediction.usable_bytes), f"GPU {view.amount(prediction.usable_bytes)}")
    return svg.picture(_WIDTH, 136, "Predicted memory by component", parts)


def colour(component: str) -> str:
    """The colour of a component, the same in all charts."""
    return COMPONENT_COLOURS.get(component, OTHER_COLOUR)


def runs(view: JobView) -> str:
    """Predicted and measured memory of each run against its GPU's."""
    shown = [run for run in view.runs if run.predicted_bytes or measured_bytes(run)]
    if not shown or not view.usable_bytes:
        return ""
    frame = Frame(250, 34, _WIDTH - 190, 34 + _ROW * len(shown))
    sizes = [view.usable_by(run) for run in shown]
    most = max(*(max(run.predicted_bytes, measured_bytes(run)) for run in shown), *sizes)
    scale = frame.across(0, most * 1.02)
    parts = svg.x_axis(frame, scale, _ticks(most * 1.02), f"{_unit(most * 1.02)} on the fullest GPU")
    for number, (run, size) in enumerate(zip(shown, sizes, strict=True)):
        top = frame.top + _ROW * number
        parts += _run(view, run, frame, scale, top)
        for x, look in ((scale(size), "limit"), (scale(size * (1 - view.headroom)), "headroom")):
            parts.append(svg.line(x, top, x, top + _ROW, look))
    tooltip = ", then ".join(dict.fromkeys(map(view.amount, sizes)))
    parts.append(svg.words(scale(max(sizes)), frame.top - 14, f"GPU {tooltip}", "limittext", "end"))
    return svg.picture(_WIDTH, frame.bottom + 40, "Predicted and measured memory of each run", parts)


def _run(view: JobView, run: RunStatus, frame: Frame, scale: svg.Scale, top: float) -> list[str]:
    measured, error = measured_bytes(run), error_ratio(run)
    strong = " strong" if view.is_winner(run) else ""
    parts = [
        svg.words(0, top + 19, _name(run), f"label{strong}"),
        svg.words(0, top + 35, run.plan, "tick mono"),
        svg.box(
            frame.left,
            top + 8,
            scale(run.predicted_bytes) - frame.left,
            11,
            "predicted",
            _tooltip(view, "predicted", run),
        ),
    ]
    if measured:
        parts.append(
            svg.box(
                frame.left,
                top + 22,
                scale(measured) - frame.left,
                15,
                look(view, run),
                _tooltip(view, "measured", run),
            )
        )
    said = view.amount(measured or run.predicted_bytes)
    said += f" {error:+.1%}" if error is not None else " asked for" if run.demanded_bytes else ""
    parts.append(svg.words(frame.right + 12, top + 19, said if measured else f"{said} predicted", f"label{strong}"))
    return [*parts, svg.words(frame.right + 12, top + 35, view.outcome(run), "tick")]


def _name(run: RunStatus) -> str:
    return f"{'Probe' if run.is_probe else 'Attempt'} {run.number}"


def _tooltip(view: JobView, what: str, run: RunStatus) -> str:
    size = run.predicted_bytes if what == "predicted" else measured_bytes(run)
    return f"{_name(run)}, {run.plan}: {what} {view.amount(size)}"


def look(view: JobView, run: RunStatus) -> str:
    """The CSS class for a run's outcome."""
    if ended_as(run, *OUT_OF_MEMORY):
        return "bad"
    if run.verdict is None:
        return "idle"
    return "good" if ended_as(run, Verdict.SUCCEEDED) and not view.is_tight(run) else "warn"


def errors(view: JobView) -> str:
    """The prediction error of each measured run."""
    shown = [(run, error) for run in view.runs if (error := error_ratio(run)) is not None]
    if not shown:
        return ""
    frame = Frame(250, 16, _WIDTH - 190, 16 + 30 * len(shown))
    most = max(_BAND * 1.3, *(abs(error) * 1.1 for _, error in shown))
    scale = frame.across(-most, most)
    parts = [svg.box(scale(-_BAND), frame.top, scale(_BAND) - scale(-_BAND), frame.bottom - frame.top, "band")]
    ticks = svg.round_ticks(-most * 100, most * 100, 8)
    parts += svg.x_axis(frame, scale, [(tick / 100, f"{tick:+g}%" if tick else "0") for tick in ticks])
    parts.append(svg.line(scale(0), frame.top, scale(0), frame.bottom, "axis"))
    for number, (run, error) in enumerate(shown):
        middle = frame.top + 30 * number + 15
        parts.append(svg.words(0, middle + 5, _name(run), "label"))
        parts.append(svg.line(scale(0), middle, scale(error), middle, "stem"))
        parts.append(svg.dot(scale(error), middle, 6, look(view, run), f"{_name(run)}, {run.plan}: {error:+.1%}"))
        parts.append(svg.words(frame.right + 12, middle + 5, f"{error:+.1%}", "label"))
    return svg.picture(_WIDTH, frame.bottom + 26, "Prediction error of each run", parts)


def scatter(view: JobView, plans: Sequence[KnownPlan]) -> str:
    """All plans of the job by memory and speed; probed ones are numbered."""
    if not plans or not view.usable_bytes:
        return ""
    frame = Frame(76, 34, _WIDTH - 20, 404)
    widest = max(min(max(each.device_bytes for each in plans), 2.2 * view.usable_bytes), view.usable_bytes)
    speeds = [each.tokens_per_second for each in plans]
    slowest, fastest = min(speeds) * 0.95, max(speeds) * 1.05
    up = frame.up(slowest, fastest)

    def across(size_bytes: float) -> float:
        return frame.across(0, widest * 1.02)(min(size_bytes, widest))

    parts = svg.x_axis(frame, across, _ticks(widest * 1.02), f"predicted {_unit(widest * 1.02)} on each GPU")
    parts += svg.y_axis(frame, up, [(tick, f"{tick:,.0f}") for tick in svg.round_ticks(slowest, fastest)], "tokens/s")
    taken: set[tuple[int, int, Group]] = set()
    for each in sorted(plans, key=lambda each: str(each.plan)):
        x, y = across(each.device_bytes), up(each.tokens_per_second)
        cell = (round(x / _CELL), round(y / _CELL), each.group)
        if cell not in taken:
            taken.add(cell)
            tooltip = (
                f"{each.plan}: {view.amount(each.device_bytes)}, {each.tokens_per_second:,.0f} tokens/s, {each.group}"
            )
            parts.append(svg.dot(x, y, 3.2, LOOKS[each.group], tooltip))
    parts += _limit(frame, across(view.usable_bytes), f"GPU {view.amount(view.usable_bytes)}")
    parts += [*_front(view, plans, across, up), *_probed(view, plans, across, up)]
    return svg.picture(_WIDTH, 440, "Candidates by memory and speed", parts)


def _front(view: JobView, plans: Sequence[KnownPlan], across: svg.Scale, up: svg.Scale) -> list[str]:
    """The Pareto front of the measured plans as a line."""
    known = {str(each.plan): each for each in plans}
    found = [known[probe.plan] for probe in view.front if probe.plan in known]
    points = [(across(each.device_bytes), up(each.tokens_per_second)) for each in found]
    return [svg.path(points, "front", "the Pareto front of the measured plans")] if len(points) > 1 else []


def _probed(view: JobView, plans: Sequence[KnownPlan], across: svg.Scale, up: svg.Scale) -> list[str]:
    known = {str(each.plan): each for each in plans}
    parts = []
    for probe in view.status.probes:
        found = known.get(probe.plan)
        if found is None:
            continue
        x, y = across(found.device_bytes), up(found.tokens_per_second)
        ring = "ring winner" if view.is_winner(probe) else "ring"
        parts.append(svg.dot(x, y, 11, ring, f"{_name(probe)}, {probe.plan}: {view.outcome(probe)}"))
        number = "number won" if view.is_winner(probe) else "number"
        parts.append(svg.words(x, y + 4.5, str(probe.number), number, "middle"))
    return parts


def memory(view: JobView, series: Sequence[Series], now: float) -> str:
    """Memory over time: Prometheus series of the attempts, and each run's peak from start to end."""
    halves = (("probes", view.status.probes, ()), ("attempts", view.status.attempts, series))
    frames = (Frame(76, 40, _WIDTH / 2 - 14, 270), Frame(_WIDTH / 2 + 50, 40, _WIDTH - 20, 270))
    parts: list[str] = []
    for (title, records, lines), frame in zip(halves, frames, strict=True):
        parts += _over_time(view, title, [run for run in records if to_seconds(run.started_at)], lines, frame, now)
    return svg.picture(_WIDTH, 312, "Memory over time", parts) if parts else ""


def _over_time(
    view: JobView, title: str, shown: Sequence[RunStatus], series: Sequence[Series], frame: Frame, now: float
) -> list[str]:
    if not shown or not view.usable_bytes:
        return []
    spans = [(run, to_seconds(run.started_at) or now, to_seconds(run.ended_at) or now) for run in shown]
    begin, end = min(start for _, start, _ in spans), max(stop for *_, stop in spans)
    most = max(max(measured_bytes(run), run.predicted_bytes, view.usable_by(run)) for run in shown) * 1.05
    across, up = frame.across(begin, max(end, begin + 1)), frame.up(0, most)
    parts = svg.y_axis(frame, up, _ticks(most), _unit(most))
    parts += svg.x_axis(frame, across, _minutes(begin, end))
    parts.append(svg.words(frame.left, frame.top - 12, title, "label strong"))
    for run, start, stop in spans:
        left, width = across(start), max(across(stop) - across(start), 2)
        size = measured_bytes(run)
        how = look(view, run)
        if size:
            parts.append(
                svg.box(
                    left, up(size), width, frame.bottom - up(size), f"{how} area", _tooltip(view, "measured", run), 0
                )
            )
            parts.append(svg.line(left, up(size), left + width, up(size), f"{how} edge"))
        if run.predicted_bytes:
            top = up(run.predicted_bytes)
            parts.append(svg.line(left, top, left + width, top, "expected"))
        if width > 16:
            parts.append(svg.words(left + width / 2, frame.bottom - 8, str(run.number), "tick", "middle"))
    for number, each in enumerate(series):
        points = [(across(at), up(value)) for at, value in each.points if begin <= at <= end]
        if points:
            parts.append(svg.path(points, _SERIES_LOOKS[number % len(_SERIES_LOOKS)], each.name))
    edges = [frame.left, *(across(start) for _, start, _ in spans[1:]), frame.right]
    for run, left, right in zip(shown, edges, edges[1:], strict=False):
        parts.append(svg.line(left, up(view.usable_by(run)), right, up(view.usable_by(run)), "limit"))
    return parts


def _minutes(begin: float, end: float) -> list[tuple[float, str]]:
    length = end - begin
    unit, name = (3600.0, "h") if length > 7200 else (60.0, "min") if length > 120 else (1.0, "s")
    return [(begin + tick * unit, f"{tick:g} {name}") for tick in svg.round_ticks(0, length / unit, 4)]


def _ticks(full_bytes: float) -> list[tuple[float, str]]:
    unit = GIB if full_bytes >= GIB else MIB
    return [(tick * unit, f"{tick:g}") for tick in svg.round_ticks(0, full_bytes / unit, 8)]


def _unit(full_bytes: float) -> str:
    return "GiB" if full_bytes >= GIB else "MiB"


def _limit(frame: Frame, x: float, text: str) -> list[str]:
    """The line of the GPU's memory limit."""
    return [
        svg.line(x, frame.top - 8, x, frame.bottom, "limit"),
        svg.words(x, frame.top - 14, text, "limittext", "end"),
    ]
