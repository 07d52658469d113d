"""Converts plans to the parameters of an Optuna study, one for each open knob, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from memtune.plans.plan import Plan

Value = str | int | bool
# Maps a parameter's name and its choices to the choice made.
Choose = Callable[[str, tuple[Value, ...]], object]

# Accumulation follows from the micro-batch: the global batch is the job's.
_KNOBS = tuple(field.name for field in fields(Plan) if field.name not in ("micro_batch", "accumulation"))
_NAMES = (*_KNOBS, "micro_batch")


@dataclass(frozen=True)
class StudyParameters:
    """The parameters of a study whose plans are these.

    A knob on which all plans agree is no parameter. The micro-batch is one choice of several: most integers between two
    sizes divide no batch (bench/results/micro_batch.md has what samplers make of it). A parameter is conditional where
    the choices before it leave it one value: offload, for example, where DDP was chosen and only one offload goes with
    it.
    """

    plans: tuple[Plan, ...]

    @cached_property
    def choices(self) -> dict[str, tuple[Value, ...]]:
        """Parameters and their choices, in the order in which they are chosen."""
        columns = zip(*self._rows, strict=True) if self._rows else ()
        found = {name: _distinct(column) for name, column in zip(_NAMES, columns, strict=False)}
        return {name: values for name, values in found.items() if len(values) > 1}

    def plan(self, choose: Choose) -> Plan | None:
        """The plan with these choices; None if the study has none."""
        left = list(self._rows.items())
        for place, name in enumerate(_NAMES):
            if len({row[place] for row, _ in left}) > 1:
                chosen = choose(name, self.choices[name])
                left = [each for each in left if each[0][place] == chosen]
        return left[0][1] if left else None

    def plan_of(self, values: Mapping[str, Value]) -> Plan | None:
        """The plan of a trial's parameters; None if the study has none, or it is ambiguous."""
        try:
            return self.plan(lambda name, _: values[name])
        except KeyError:
            return None

    def values_of(self, plan: Plan) -> dict[str, Value]:
        """The parameters of a plan, without those that the others determine."""
        own = dict(zip(_NAMES, _row(plan), strict=True))
        chosen: dict[str, Value] = {}

        def choose(name: str, _: tuple[Value, ...]) -> Value:
            chosen[name] = own[name]
            return own[name]

        if self.plan(choose) != plan:
            raise ValueError(f"{plan} is no plan of this study")
        return chosen

    @cached_property
    def _rows(self) -> dict[tuple[Value, ...], Plan]:
        return {_row(plan): plan for plan in self.plans}


def _row(plan: Plan) -> tuple[Value, ...]:
    return tuple(_value(getattr(plan, name)) for name in _NAMES)


def _value(choice: object) -> Value:
    """A value that an Optuna storage can hold; choices are stored by name."""
    return choice if type(choice) in (int, bool) else str(choice)  # type: ignore[return-value]  # mypy cannot follow `in`


def _distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    # Sorted, so that the choices do not depend on which plans were tried. All values have one type.
    return tuple(sorted(set(values)))
