"""An accelerate script trains as long as it meant to, whatever the plan's batches are."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_trainings
from torch.utils.data import BatchSampler, SequentialSampler
from tqdm import tqdm  # type: ignore[import-untyped]  # it has no types

from memtune.plans.plan import Plan
from memtune.wire.report import Ending
from memtune.wire.run import RunKind
from memtune_runner.integrations.first_training import FirstAccelerator
from memtune_runner.integrations.learning_rate_schedule import Schedule
from memtune_runner.rank import script_warnings
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.settings import Settings

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "language_modeling.py"


def run(plan: str, directory: Path, arguments: Sequence[str], **variables: str) -> small_trainings.Outcome:
    return small_trainings.run(SCRIPT, plan, directory, 1, arguments, INTEGRATION="accelerate", **variables)[0]


def trained(outcome: small_trainings.Outcome) -> tuple[int, int, float]:
    """Return the script's count of optimizer steps, the rows that it saw, and its last learning rate."""
    assert outcome.report.ending is Ending.SUCCEEDED, outcome.output[-3000:]
    found = re.search(r"trained (\d+) steps on (\d+) rows, learning rate (\S+)", outcome.output)
    assert found, outcome.output[-3000:]
    return int(found[1]), int(found[2]), float(found[3])


@pytest.mark.parametrize(
    ("plan", "arguments", "steps", "rows"),
    [
        # The script's own batches have 4 rows, 2 per step: here there are fewer of them, then more.
        ("fp32-ddp-none-mb8x1", [], 8, 58),
        ("fp32-ddp-none-mb1x8", ["--epochs", "2"], 16, 116),
        ("fp32-ddp-none-mb1x8", ["--batch-size", "8", "--accumulation", "1"], 8, 58),
        ("fp32-z1-none-mb1x8-bk1m", [], 8, 58),
        ("fp32-ddp-none-mb1x8", ["--dispatch"], 8, 58),
        ("fp32-ddp-none-mb1x8", ["--stream", "--max-steps", "5"], 5, 40),
        ("fp32-ddp-none-mb1x8", ["--max-steps", "3"], 3, 24),
        ("fp32-ddp-none-mb4x2", ["--own-accumulation"], 8, 58),
    ],
)
def test_a_training_is_as_long_as_the_script_meant_it(
    plan: str, arguments: list[str], steps: int, rows: int, tmp_path: Path
) -> None:
    outcome = run(plan, tmp_path, arguments)
    assert trained(outcome) == (steps, rows, 0.0)
    assert outcome.report.steps == steps


def test_each_of_two_ranks_trains_on_its_half(tmp_path: Path) -> None:
    arguments = ["--batch-size", "2"]
    outcomes = small_trainings.run(SCRIPT, "fp32-ddp-none-mb1x4", tmp_path, 2, arguments, INTEGRATION="accelerate")
    assert trained(outcomes[0]) == (8, 29, 0.0)
    assert [(each.report.trained_samples, each.report.total_samples) for each in outcomes] == [(29, 29), (29, 29)]


@pytest.mark.parametrize("batches", [15, 7])  # 7 are less than one optimizer step
def test_a_loop_that_counts_batches_is_not_taken_for_a_whole_training(batches: int, tmp_path: Path) -> None:
    outcome = run("fp32-ddp-none-mb1x8", tmp_path, ["--micro-steps", str(batches)])
    assert (outcome.exit_code, outcome.report.ending) == (88, Ending.BAD_INPUT), outcome.output[-3000:]
    assert outcome.report.message.startswith(f"the script left its loop after {batches} batches of an epoch, within")
    assert "if it stops early, for a time limit" in outcome.report.message


def test_a_loader_prepared_by_itself_is_evaluated_and_hides_no_training_cut_short(tmp_path: Path) -> None:
    script = SCRIPT.with_name("prepared_apart.py")
    (outcome,) = small_trainings.run(script, "fp32-ddp-none-mb1x4", tmp_path, 1, (), INTEGRATION="accelerate")
    assert "evaluated 12 batches of 12" in outcome.output
    assert "the script left its loop after 6 batches" in outcome.report.message


@pytest.mark.parametrize("plan", ["fp32-ddp-none-mb2x4", "fp32-ddp-none-mb8x1", "fp32-ddp-none-mb1x8"])
def test_a_relaunch_that_skips_by_hand_in_its_own_count_goes_on_with_the_rest(plan: str, tmp_path: Path) -> None:
    script, saves = SCRIPT.with_name("skips_by_hand.py"), tmp_path / "saves"
    variables = {"INTEGRATION": "accelerate", "CHECKPOINT_PATH": str(saves)}
    (first,) = small_trainings.run(script, "fp32-ddp-none-mb2x4", tmp_path, 1, (), **variables, ATTEMPT="1")
    assert first.report.steps == 4, first.output[-3000:]
    variables |= {"RESUME_FROM": str(saves / "step-4"), "RESUME_SAMPLES": "32", "ATTEMPT": "2"}
    (again,) = small_trainings.run(script, plan, tmp_path, 1, (), **variables)
    assert (again.report.ending, again.report.steps) == (Ending.SUCCEEDED, 4), again.output[-3000:]
    assert (again.report.trained_samples, again.report.total_samples) == (64, 64)
    rows = [number for each in (first, again) for number in re.findall(r"row (\d+)", each.output)]
    assert sorted(map(int, rows)) == list(range(64)), "each row once"
    if plan != "fp32-ddp-none-mb2x4":  # where it might have taken the batches of a step ahead
        (missed,) = small_trainings.run(script, plan, tmp_path, 1, ("1",), **variables)
        assert (missed.report.ending, missed.report.steps) == (Ending.BAD_INPUT, 0), missed.output[-3000:]
        assert "the script passed over 18 batches" in missed.report.message


def test_a_relaunch_under_another_plan_resumes_within_the_epoch_and_reports_miscounts(
    tmp_path: Path,
) -> None:
    saves = tmp_path / "saves"
    saving = ["--epochs", "2", "--save-every", "5", "--output-dir", str(saves)]
    first = run("fp32-ddp-none-mb8x1", tmp_path, saving, CHECKPOINT_PATH=str(saves), ATTEMPT="1")
    assert trained(first) == (16, 116, 0.0)
    variables = {"CHECKPOINT_PATH": str(saves), "ATTEMPT": "2"}
    variables |= {"RESUME_FROM": str(saves / "step_10"), "RESUME_SAMPLES": "80"}
    resuming = [*saving, "--resume-from", str(saves / "step_10")]
    again = run("fp32-ddp-none-mb2x4", tmp_path, resuming, **variables)
    # Two steps of the second epoch were made: 16 of its 58 rows.
    assert trained(again) == (16, 42, 0.0)
    assert (again.report.steps, again.report.resumed_samples) == (6, 80)
    assert again.report.warnings == ""
    repeated = run("fp32-ddp-none-mb2x4", tmp_path, [*resuming, "--no-skip"], **{**variables, "ATTEMPT": "3"})
    assert repeated.report.warnings.startswith(
        "the script seems to train its resumed epoch from the beginning, not from"
    )
    assert "accelerator.skip_first_batches(loader, n)" in repeated.report.warnings
    assert (again.report.total_samples, repeated.report.total_samples) == (116, None), "it only seems so"
    lost = run("fp32-ddp-none-mb2x4", tmp_path, [*resuming, "--miscount"], **variables)
    assert (lost.report.ending, lost.report.steps) == (Ending.BAD_INPUT, 0), lost.output[-3000:]
    assert (
        "the script skips 5 batches of the epoch, and its checkpoint is 2 optimizer steps into" in lost.report.message
    )


class Accelerator:
    """The part of accelerate's class that a script needs to accumulate."""

    sync_gradients = True

    def __init__(self) -> None:
        self.gradient_state = SimpleNamespace(plugin_kwargs={"num_steps": 8})

    @property
    def gradient_accumulation_steps(self) -> int:
        return int(self.gradient_state.plugin_kwargs["num_steps"])

    def load_state(self, _directory: str | None = None) -> None:
        """Load nothing."""

    def accumulate(self) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self) -> int:
        """Return the divisor of the loss."""
        return self.gradient_accumulation_steps


class Loader:
    """A prepared loader."""

    def __len__(self) -> int:
        return 57

    def __iter__(self) -> Iterator[int]:
        return iter(range(57))


PLAN = Plan.parse("fp32-ddp-none-mb1x8")
FRESH = Settings(PLAN, RunKind.TRAIN, "accelerate", 8, 32)
RESUMED = replace(FRESH, resume_from=Path("/checkpoints/step_10"), resume_samples=80)  # 2 steps into the second epoch


def begun(own: dict[str, Any], settings: Settings = FRESH, **environ: str) -> tuple[Any, Any, Any]:
    """Return Accelerator, loader and data module of a script that passed ``own``, under a plan of 1x8 batches."""
    _, make, data = scheduled(settings)
    return *make(own, environ), data


def scheduled(
    settings: Settings = FRESH, first: FirstAccelerator | None = None, steps: Callable[[], int] = lambda: 0
) -> tuple[Schedule, Callable[..., tuple[Any, Any]], Any]:
    """Return a schedule, a function that makes an Accelerator with its loader, and the data module."""
    schedule, patches = Schedule(settings, steps, first or FirstAccelerator(settings)), Patches()
    accelerator, loader = type("Own", (Accelerator,), {}), type("Own", (Loader,), {})
    data = SimpleNamespace(
        DataLoaderShard=loader, DataLoaderDispatcher=type("Other", (Loader,), {}), skip_first_batches=skipped
    )
    schedule.wrap_accelerator(SimpleNamespace(Accelerator=accelerator), patches)
    schedule.wrap_loaders(data, patches)

    def make(own: dict[str, Any], environ: dict[str, str]) -> tuple[Any, Any]:
        made = accelerator(), loader()
        assert schedule.plugin(made[0], own, environ).num_steps == 8
        schedule.follow(*made)
        return made

    return schedule, make, data


def skipped(_: Loader, num_batches: int) -> range:
    """Return what remains of the loader."""
    return range(num_batches, 57)


@pytest.mark.parametrize(
    ("own", "environ", "accumulation", "length"),
    [
        ({}, {}, 1, 57),
        ({"gradient_accumulation_steps": 1}, {}, 1, 8),
        ({"gradient_accumulation_steps": 2}, {}, 2, 16),
        ({"gradient_accumulation_steps": 8}, {}, 8, 57),
        ({"gradient_accumulation_steps": 1}, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, 4, 32),
    ],
)
def test_a_script_sees_its_own_accumulation_and_as_many_batches_a_step(
    own: dict[str, Any], environ: dict[str, str], accumulation: int, length: int
) -> None:
    accelerator, loader, _ = begun(own, FRESH, **environ)
    assert (accelerator.gradient_accumulation_steps, len(loader), len(list(loader))) == (accumulation, length, 57)


def test_a_loop_that_accumulates_by_itself_has_its_losses_divided_as_without_a_plan() -> None:
    accelerator, loader, _ = begun({})
    assert len(loader) == 57
    accelerator.backward()
    assert accelerator.gradient_state.plugin_kwargs["num_steps"] == 1


def test_a_progress_bar_has_the_batches_of_the_loop_and_computes_no_schedule() -> None:
    accelerator, loader, _ = begun({})
    assert tqdm(loader, disable=False, file=io.StringIO()).total == 57
    accelerator.accumulate()
    assert len(loader) == 8, "a batch for each optimizer step, as without accumulation"
    accelerator, loader, _ = begun({})
    assert len(tqdm(loader, disable=True)) == 57
    with pytest.raises(BadInputError, match=r"asked for the loader's length \(by len\(\)\)"):
        accelerator.accumulate()


@pytest.mark.parametrize("look", [list, tuple, sorted, bool, lambda loader: [*loader]])
def test_looking_through_a_loader_computes_no_schedule(look: Callable[[Any], Any]) -> None:
    accelerator, loader, _ = begun({})
    assert look(loader)
    accelerator.accumulate()
    accelerator, loader, _ = begun({})
    look(loader)
    assert len(loader) == 57
    with pytest.raises(BadInputError, match="asked for the loader's length"):
        accelerator.accumulate()


def test_contradicting_accumulation_is_refused_before_training() -> None:
    accelerator, loader, _ = begun({"gradient_accumulation_steps": 2})
    assert len(loader) == 16
    with pytest.raises(BadInputError, match=r"accumulates 2 batches by itself, .* within accelerator\.accumulate"):
        accelerator.backward()
    accelerator, loader, _ = begun({})
    assert len(loader) == 57
    with pytest.raises(BadInputError, match="pass its own number, if only gradient_accumulation_steps=1"):
        accelerator.accumulate()


def test_each_accelerator_of_a_script_accumulates_in_its_own_way() -> None:
    _, make, _ = scheduled()
    (first, loader), (second, others) = make({"gradient_accumulation_steps": 2}, {}), make({}, {})
    assert (first.gradient_accumulation_steps, len(loader), len(others)) == (2, 16, 57)
    second.gradient_state = first.gradient_state  # accelerate's is one for all
    first.accumulate()
    assert first.backward() == 2
    second.backward()
    assert first.gradient_state.plugin_kwargs["num_steps"] == 1
    first.accumulate()
    assert first.gradient_state.plugin_kwargs["num_steps"] == 8


def test_another_training_with_an_accelerator_may_accumulate_in_another_way() -> None:
    schedule, make, _ = scheduled()
    accelerator, loader = make({}, {})
    accelerator.accumulate()
    next(iter(loader))
    schedule.begins_again(accelerator)
    accelerator.backward()
    assert accelerator.gradient_state.plugin_kwargs["num_steps"] == 1


def test_a_second_training_with_a_loader_prepared_once_has_nothing_to_do_with_the_checkpoint() -> None:
    first = FirstAccelerator(RESUMED)
    schedule, make, data = scheduled(RESUMED, first)
    accelerator, loader = make({"gradient_accumulation_steps": 2}, {})
    first.prepares(accelerator, is_new=False)
    accelerator.load_state()
    next(iter(loader))  # a loop that finds at its first batch that it has nothing left to train
    first.prepares(accelerator, is_new=True)
    schedule.begins_again(accelerator)
    for _ in range(2):
        numbers = []
        for number in loader:
            numbers.append(number)
            with accelerator.accumulate():
                accelerator.backward()
        assert numbers == list(range(57))
    assert schedule.unfinished == ""
    assert data.skip_first_batches(loader, 3) == range(12, 57)


@pytest.mark.parametrize(
    ("directory", "trains_on", "is_told"),
    [("/checkpoints/step_10", True, True), ("/checkpoints/step_10", False, False), ("/checkpoints/best", True, False)],
)
@pytest.mark.parametrize("is_new", [False, True])
def test_reloading_the_jobs_checkpoint_after_steps_is_reported(
    directory: str, trains_on: bool, is_told: bool, is_new: bool
) -> None:
    steps, first = 10, FirstAccelerator(RESUMED)
    schedule, make, _ = scheduled(RESUMED, first, lambda: steps)
    accelerator, loader = make({"gradient_accumulation_steps": 1}, {})
    first.prepares(accelerator, is_new=False)
    accelerator.load_state("/checkpoints/step_10")
    next(iter(loader))
    accelerator.accumulate()
    steps = 13
    accelerator.load_state(directory)
    if is_new:  # a model that the load did not touch
        first.prepares(accelerator, is_new=True)
        schedule.begins_again(accelerator)
    script_warnings.reset()
    if trains_on:
        accelerator.accumulate()
    expected = "the script loaded the job's checkpoint again after it had made 3 optimizer steps, and trains on: "
    assert script_warnings.collected().startswith(expected) is is_told
    script_warnings.reset()


def test_a_training_that_is_seen_to_accumulate_in_another_way_is_refused() -> None:
    accelerator, loader, _ = begun({"gradient_accumulation_steps": 2})
    batches = iter(loader)
    next(batches)
    with accelerator.accumulate():
        accelerator.backward()
    next(batches)  # a loop may fetch the next batch before it trains on the last one
    accelerator.backward()
    next(batches)
    with pytest.raises(BadInputError, match="create an Accelerator for each training"):
        accelerator.backward()


def test_a_resumed_training_that_only_passes_over_its_batches_is_judged_by_its_own_epoch() -> None:
    first = FirstAccelerator(RESUMED)
    schedule, make, _ = scheduled(RESUMED, first)
    accelerator, loader = make({"gradient_accumulation_steps": 2}, {})
    first.prepares(accelerator, is_new=False)
    accelerator.load_state()
    batches = iter(loader)
    for _ in range(16):
        next(batches)
    other, others = make({}, {})
    del accelerator  # as at the end of a function that trains
    for _ in others:
        other.accumulate()
    assert schedule.unfinished == ""


def test_batches_of_other_loaders_or_more_of_one_may_be_trained_within_a_call_of_accumulate() -> None:
    schedule, make, _ = scheduled()
    accelerator, loader = make({"gradient_accumulation_steps": 2}, {})
    others = [type(loader)() for _ in range(2)]
    for each in others:
        schedule.follow(accelerator, each)
    first, second, third = (iter(each) for each in (loader, *others))
    for _ in range(3):
        next(first)
        with accelerator.accumulate():
            for each in (second, third, third):
                next(each)
                accelerator.backward()


def test_a_script_that_takes_the_batches_of_its_own_step_ahead_is_refused() -> None:
    accelerator, loader, _ = begun({"gradient_accumulation_steps": 2})
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    accelerator.accumulate()
    accelerator.accumulate()
    for _ in range(2):
        next(batches)
    with pytest.raises(BadInputError, match=r"takes 2 batches ahead for each optimizer step, .* makes 8 of them"):
        accelerator.accumulate()


def test_two_loaders_in_step_are_not_batches_taken_ahead() -> None:
    schedule, make, _ = scheduled()
    accelerator, loader = make({"gradient_accumulation_steps": 2}, {})
    other = type(loader)()
    schedule.follow(accelerator, other)
    for _ in zip(loader, other, strict=True):
        accelerator.accumulate()
        accelerator.accumulate()


def test_two_models_may_train_on_one_batch_after_a_peek_and_past_a_bad_one() -> None:
    accelerator, loader, _ = begun({"gradient_accumulation_steps": 2})
    next(iter(loader))
    for number in loader:
        if number != 20:
            accelerator.accumulate()
            accelerator.accumulate()


def test_a_script_that_fetches_the_next_batch_ahead_is_trained() -> None:
    accelerator, loader, _ = begun({"gradient_accumulation_steps": 2})
    batches = iter(loader)
    next(batches)
    for _ in range(4):
        next(batches)
        accelerator.accumulate()
        accelerator.backward()


def test_a_skip_of_nothing_in_the_epoch_after_the_resumed_one_is_taken() -> None:
    _, loader, data = begun({"gradient_accumulation_steps": 2}, RESUMED)
    with pytest.raises(BadInputError, match="the script skips 3 batches of the epoch"):
        data.skip_first_batches(loader, 3)
    assert data.skip_first_batches(loader, 4) == range(16, 57)
    assert data.skip_first_batches(loader, 0) == range(57)


@pytest.mark.parametrize(
    ("passed_over", "is_right"), [(0, True), (7, True), (12, False), (16, True), (40, False), (73, True)]
)
def test_batches_that_a_resumed_script_passes_over_by_hand_are_those_that_were_trained(
    passed_over: int, is_right: bool
) -> None:
    accelerator, loader, _ = begun({"gradient_accumulation_steps": 2}, RESUMED)
    list(loader)  # before the checkpoint is loaded, for statistics
    accelerator.load_state()
    given = itertools.chain(loader, loader)
    for _ in range(passed_over + 1):
        next(given)
    with nullcontext() if is_right else pytest.raises(BadInputError, match="2 optimizer steps into an epoch, 16"):
        accelerator.accumulate()


class Restored(BatchSampler):
    """Batches that continue from a restored state."""

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {}


class RestoredRows(SequentialSampler):
    """Rows that continue from a restored state."""

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {}


@pytest.mark.parametrize(
    ("batch_sampler", "below", "is_told"),
    [
        (BatchSampler(range(57), 1, drop_last=False), None, True),
        (BatchSampler(range(57), 1, drop_last=False), Restored(range(57), 1, drop_last=False), False),
        (Restored(range(57), 1, drop_last=False), None, False),
        (BatchSampler(RestoredRows(range(57)), 1, drop_last=False), None, False),
    ],
)
def test_a_script_that_may_skip_by_itself_is_not_said_to_repeat_rows(
    batch_sampler: BatchSampler, below: object, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loader, "batch_sampler", batch_sampler, raising=False)
    monkeypatch.setattr(Loader, "base_dataloader", below, raising=False)
    monkeypatch.setattr(Loader, "state_dict", dict, raising=False)  # accelerate's loaders have it in any case
    script_warnings.reset()
    accelerator, loader, _ = begun({}, RESUMED)
    accelerator.load_state()
    next(iter(loader))
    accelerator.accumulate()
    assert script_warnings.collected().startswith("the script seems to train its resumed epoch from the beg") is is_told
    assert bool(script_warnings.collected()) is is_told
    script_warnings.reset()


@pytest.mark.parametrize("integration", ["accelerate", "hf-trainer"])
def test_a_script_that_looks_for_a_batch_size_leaves_an_out_of_memory_to_the_ladder(
    integration: str, tmp_path: Path
) -> None:
    script = SCRIPT.with_name("finds_batch_size.py")
    (outcome,) = small_trainings.run(script, "fp32-ddp-none-mb8x1", tmp_path, 1, (), INTEGRATION=integration)
    assert outcome.report.ending is Ending.DEVICE_OOM, outcome.output[-3000:]
    assert outcome.output.count("tries batches of") == 1
