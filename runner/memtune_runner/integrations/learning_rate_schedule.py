"""Keeps an accelerate script's schedule right while its loop runs the plan's micro-batches.

A script computes its length from the loader's length and the accumulation that it passes to its Accelerator. So it
keeps seeing its own accumulation and as many batches per optimizer step, while accelerate accumulates as the plan says.
A script that passes none counts the batches that it gets, and sees all of them.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from memtune_runner.checkpoints import manifest
from memtune_runner.integrations import row_order
from memtune_runner.integrations.epoch_loops import Variables, loop_variables
from memtune_runner.integrations.first_training import FirstAccelerator
from memtune_runner.integrations.loader_callers import Place, is_of_accelerate, is_progress_bar, place_in, truth_of
from memtune_runner.integrations.loader_passes import Followed, Loop, Passes
from memtune_runner.rank import script_warnings
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.probe import accumulation
from memtune_runner.rank.settings import Settings
from memtune_runner.rank.training_length import TrainingLength

Inherited = Callable[..., Any]

_OWN_ACCUMULATION = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"  # of `accelerate launch`; overrides the script


class Schedule(TrainingLength):
    """The length of its training as a script sees it, and how far it trains.

    ``steps`` returns the optimizer steps behind the weights; ``first`` is the training that may resume.
    """

    is_known_at_end = True

    def __init__(self, settings: Settings, steps: Callable[[], int], first: FirstAccelerator) -> None:
        self._settings, self._plan = settings, settings.plan
        self._steps, self._first = steps, first
        self._loaded: Loop | None = None  # that of the Accelerator that has loaded the checkpoint
        self._passes = Passes(steps, settings.plan.micro_batch)
        self._loops: weakref.WeakKeyDictionary[Any, Loop] = weakref.WeakKeyDictionary()  # of each Accelerator
        self._accelerator: Any = None
        self._has_skipped = False  # the batches of its resumed epoch that were trained before
        self._is_resuming = False  # the checkpoint is loaded, and nothing has been trained since
        self._passed_over = 0  # batches given to the script since then
        self._lost_steps = 0  # those since the checkpoint, which the script has loaded again
        self._seems_to_repeat = False  # the rows that its resumed epoch had trained before
        self._asked_for_batches: Place | None = None  # the caller, until it has taken a batch

    def wrap_accelerator(self, module: Any, patches: Patches) -> None:
        """Let an Accelerator report the script's own accumulation, and detect whether the script uses the plan's."""
        inherited = module.Accelerator.gradient_accumulation_steps

        def get(accelerator: Any) -> int:
            is_within = is_of_accelerate(sys._getframe(1))
            return int(inherited.fget(accelerator)) if is_within else self._loop(accelerator).own or 1

        def put(accelerator: Any, steps: int) -> None:
            if is_of_accelerate(sys._getframe(1)):
                inherited.fset(accelerator, steps)
            else:
                loop = self._loop(accelerator)
                loop.argument = loop.own = steps

        patches.replace(module.Accelerator, "gradient_accumulation_steps", property(get, put))
        patches.wrap(module.Accelerator, "accumulate", self._accumulate)
        patches.wrap(module.Accelerator, "backward", self._backward)
        if self._settings.checkpoint_path is not None and not self._settings.is_probe:
            patches.wrap(module.Accelerator, "save_state", self._save_state)
        if self._settings.resume_from is not None:
            patches.wrap(module.Accelerator, "load_state", self._load_state)

    def wrap_loaders(self, module: Any, patches: Patches) -> None:
        """Let the training loader report its length, and skip, in the script's batches."""
        for kind in (module.DataLoaderShard, module.DataLoaderDispatcher):
            patches.replace(kind, "__bool__", truth_of(kind.__len__))
            patches.wrap(kind, "__len__", self._length)
            patches.wrap(kind, "__iter__", self._iterate)
        patches.wrap(module, "skip_first_batches", self._skip)

    def plugin(self, accelerator: Any, given: dict[str, Any], environ: Mapping[str, str]) -> Any:
        """Return a plugin with the plan's accumulation and the script's other options; remember the script's own."""
        from accelerate.utils import GradientAccumulationPlugin  # type: ignore[import-untyped]  # accelerate ships no types

        plugin, variable = given.get("gradient_accumulation_plugin"), environ.get(_OWN_ACCUMULATION, "")
        if plugin is not None:
            own = plugin.num_steps
        else:
            own = int(variable) if variable.isdecimal() else given.get("gradient_accumulation_steps")
        self._loops[accelerator] = Loop(own)
        return replace(plugin or GradientAccumulationPlugin(), num_steps=accumulation(self._settings))

    def begins_again(self, accelerator: Any) -> None:
        """Record that another training begins with an Accelerator: its loop may accumulate in another way."""
        self._loop(accelerator).begin_again()
        if not self._first.is_current:
            self._is_resuming, self._passed_over = False, 0

    def follow(self, accelerator: Any, loader: Any, own_share: int = 0) -> None:
        """Follow a training loader that accelerate has prepared.

        ``own_share`` is the samples per batch of the script's own loader, over all ranks.
        """
        self._accelerator, loop = accelerator, self._loop(accelerator)
        loop.own_share = own_share
        self._passes.follow(loader, loop)

    def _loop(self, accelerator: Any) -> Loop:
        return self._loops.setdefault(accelerator, Loop(None))

    def _goes_on(self, loop: Loop) -> bool:
        """Whether it belongs to the training that resumes from the checkpoint; before the load it may be any."""
        return self._first.is_current and (self._loaded is None or self._loaded is loop)

    @property
    def has_trained(self) -> bool:
        """Whether this process has made a step or has loaded one that it resumes from."""
        return self._loaded is not None or self.has_stepped

    @property
    def has_stepped(self) -> bool:
        """Whether this process has made a step."""
        return self._steps() > self._settings.resumed_step

    @property
    def follows(self) -> bool:
        """Whether a training loader is known."""
        return bool(self._passes.loaders)

    @property
    def unfinished(self) -> str:
        """Return evidence that a script which succeeded trained less than it meant to; empty if there is none."""
        if self._passed_over and not self._may_have_skipped(self._passed_over):
            return self._miscount
        loaders = (each for each in self._passes.loaders if each.loop.accumulates)
        batches = max((each.position for each in loaders if not self._passes.left_in_first_step(each)), default=0)
        if not batches or self._accelerator.sync_gradients:
            return ""
        return (
            f"the script left its loop after {batches} batches of an epoch, within an optimizer step: if it counts "
            f"batches, plan {self._plan} makes {self._plan.accumulation} of them an optimizer step, so let it "
            "count optimizer steps by accelerator.sync_gradients; if it stops early, for a time limit or a loss that "
            "no longer falls, let it do so only where accelerator.sync_gradients is true"
        )

    @property
    def resumed_samples(self) -> int | None:
        """Return the samples of the steps before the checkpoint, if the loader knows the samples of an epoch."""
        first = next(iter(self._passes.loaders), None)
        if self._settings.resume_from is None or first is None or first.samples is None or not first.batches:
            return None
        epochs, steps = self._place(first.batches)
        return epochs * first.samples + steps * self._plan.accumulation * self._plan.micro_batch

    def total_samples(self, _trained: int) -> int | None:
        """Return the samples of all passes that the script has begun to train on."""
        begun, resumed = self._passes.begun_samples(), self.resumed_samples
        if self._settings.resume_from is None:
            return begun
        if begun is None or resumed is None or self._seems_to_repeat or self.trained_twice:
            return None
        return resumed + begun

    @property
    def trained_twice(self) -> str:
        """Return that a resumed script seems to have begun before its checkpoint; empty if it does not."""
        self._passes.begun_samples()  # ends the last pass
        first = next(iter(self._passes.loaders), None)
        _, steps = self._place(first.batches if first else None)
        began = self._passes.epochs.begins_again(is_within_epoch=steps > 0)
        if began is None:
            return ""
        return (
            f"the resumed script seems to have trained samples twice: it began with {began.variable} {began.first}, "
            f"not {began.expected}. If its loop counts from the beginning of the training, let it take the first "
            f"{began.variable} from the name of its checkpoint, or from $MEMTUNE_RESUME_STEP"
        )

    def _in_scripts_batches(self, batches: int, own: int | None) -> int:
        if own is None or own == self._plan.accumulation:
            return batches
        return math.ceil(batches / self._plan.accumulation) * own

    def _length(self, inherited: Inherited, loader: Any) -> int:
        batches: int = inherited(loader)
        asker = sys._getframe(2)  # behind this function's frame is its wrapper's
        followed = self._passes.of(loader)
        if followed is None or is_of_accelerate(asker) or is_progress_bar(asker):
            return batches
        if self._asked_for_batches == place_in(asker):
            return batches  # list(), tuple() and sorted() get the iterator, then a length hint
        followed.loop.length_was_read = True
        return self._in_scripts_batches(batches, followed.loop.own)

    def _iterate(self, inherited: Inherited, loader: Any) -> Iterator[Any]:
        batches: Iterator[Any] = inherited(loader)
        self._asked_for_batches = place_in(sys._getframe(2))
        if (followed := self._passes.of(loader)) is None:
            return batches
        is_resumable = self._settings.checkpoint_path is not None and not self._settings.is_probe
        return self._counted(followed, batches, loop_variables(sys._getframe(2)) if is_resumable else {})

    def _counted(self, followed: Followed, batches: Iterator[Any], variables: Variables) -> Iterator[Any]:
        self._passes.end(followed)
        followed.variables = variables
        followed.order.pass_begins(followed.loader)
        try:
            for batch in self._resumed(followed, batches):
                self._asked_for_batches = None
                followed.given += 1
                self._passed_over += self._is_resuming and self._goes_on(followed.loop)
                followed.order.batch_given(followed.loader)
                yield batch
        finally:
            followed.order.pass_ends(followed.loader)
        self._passes.end(followed, (followed.batches or followed.position) - followed.position)

    def _resumed(self, followed: Followed, batches: Iterator[Any]) -> Iterator[Any]:
        """Give a resumed script the first untrained batch at each place where it may begin to train.

        A script that skips by hand passes over as many batches as the checkpoint's steps had in its own count, or in
        that of the plan. Skipped batches do not matter, so between the two places it gets that batch.
        """
        planned, own = self._places_by_hand(followed)
        given = 0
        for number, batch in enumerate(batches):
            if self._is_resuming and own <= number < planned:
                continue
            followed.position, given = number + 1, given + 1
            yield batch
            while self._is_resuming and number == planned and given <= max(planned, own):
                given += 1
                yield batch

    def _places_by_hand(self, followed: Followed) -> tuple[int, int]:
        """Return the first batch that was not trained in the plan's and in the script's count; -1 if it is the same.

        At the beginning of an epoch a script may as well take batches ahead.
        """
        _, steps = self._place(followed.batches)
        planned, own = self._plan.accumulation, followed.loop.own or self._plan.accumulation
        is_asked = self._is_resuming and self._goes_on(followed.loop) and own != planned
        return (
            (steps * planned, steps * own) if is_asked and steps * min(own, planned) >= max(own, planned) else (-1, -1)
        )

    def _save_state(self, inherited: Inherited, accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        directory = inherited(accelerator, *args, **kwargs)
        if accelerator.is_main_process:
            row_order.save(Path(directory), self._passes.orders)
            self._passes.epochs.save(Path(directory))
        return directory

    def _load_state(self, inherited: Inherited, accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        result = inherited(accelerator, *args, **kwargs)
        if not self._first.is_of(accelerator) or self.has_stepped:
            resumed, asked = self._settings.resume_from, next(iter(args), kwargs.get("input_dir"))
            if resumed is not None and asked and Path(asked).resolve() == resumed.resolve():
                self._lost_steps = self._steps() - self._settings.resumed_step
            return result
        self._first.loads(accelerator)
        self._loaded = self._loop(accelerator)
        if self._settings.resume_from is not None:
            row_order.resume(self._settings.resume_from, self._passes.orders)
            self._passes.epochs.resume(self._settings.resume_from)
        self._is_resuming, self._passed_over = True, 0
        return result

    def _training_begins(self, accelerator: Any) -> None:
        """Raise BadInputError if a script that skips batches by hand has missed the checkpoint's position."""
        if self._lost_steps:
            script_warnings.warn(
                f"the script loaded the job's checkpoint again after it had made {self._lost_steps} optimizer steps, "
                "and trains on: load it before the first training alone, and begin others without it",
                once="loaded again",
            )
        self._first.trains(accelerator)
        if not self._first.is_of(accelerator):
            self._passes.train(None)
            return
        if self._passed_over and not self._may_have_skipped(self._passed_over - 1):
            raise BadInputError(self._miscount)
        if self._is_resuming and not self._has_skipped:
            self._warn_of_repeated_rows()
        self._passes.train(self._samples_passed_over)
        self._is_resuming, self._passed_over = False, 0

    def _warn_of_repeated_rows(self) -> None:
        """Warn of a resumed script that restarts its epoch, unless its loader may have restored its position."""
        followed = next((each for each in self._passes.loaders if each.position), None)
        if followed is None or followed.samples is None or followed.order.may_be_restored:
            return
        _, steps = self._place(followed.batches)
        if steps and followed.position <= self._plan.accumulation * steps:
            self._seems_to_repeat = True
            script_warnings.warn(
                f"the script seems to train its resumed epoch from the beginning, not from step {steps}: iterate over "
                "accelerator.skip_first_batches(loader, n) first, after load_state",
                once="repeated rows",
            )

    def _samples_passed_over(self, followed: Followed) -> int:
        """Return the samples skipped in a resumed epoch by a script that takes its batches one by one."""
        _, steps = self._place(followed.batches)
        batches = steps * self._plan.accumulation
        return batches * self._plan.micro_batch if followed.position > batches else 0

    def _may_have_skipped(self, batches: int) -> bool:
        """Whether a script may have skipped so many batches before the next step; none if it restarts the epoch."""
        followed = self._resumed_loader
        in_epoch = followed.batches if followed else None
        epoch, steps = self._place(in_epoch)
        of_epoch = steps * self._plan.accumulation
        planned, own = self._places_by_hand(followed) if followed else (-1, -1)
        if batches in (planned, own):
            return True
        # A loop may take all batches of a step before it trains on the first.
        ahead = max([self._plan.accumulation, *(each.own or 1 for each in self._loops.values())])
        places = (0,) if own > planned else (0, of_epoch, epoch * (in_epoch or 0) + of_epoch)
        return any(0 <= batches - each < ahead for each in places)

    @property
    def _resumed_loader(self) -> Followed | None:
        return next((each for each in reversed(self._passes.loaders) if self._goes_on(each.loop)), None)

    @property
    def _miscount(self) -> str:
        _, steps = self._place(self._resumed_loader.batches if self._resumed_loader else None)
        return (
            f"the script passed over {self._passed_over} batches after it had loaded its checkpoint, which is {steps} "
            f"optimizer steps into an epoch, {steps * self._plan.accumulation} batches under plan {self._plan}: skip "
            "them by accelerator.skip_first_batches(loader, n), which takes the script's own count"
        )

    def _place(self, batches: int | None) -> tuple[int, int]:
        """Return the checkpoint's epoch and its optimizer steps within that epoch."""
        steps = self._settings.resumed_step
        return divmod(steps, math.ceil(batches / self._plan.accumulation)) if batches else (0, steps)

    def _accumulate(self, inherited: Inherited, accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        loop = self._loop(accelerator)
        if not loop.accumulates and loop.own is None and loop.length_was_read and self._plan.accumulation > 1:
            raise BadInputError(
                "the script trains within accelerator.accumulate(model), but asked for the loader's length (by len()) "
                "before it said how many batches make an optimizer step, and may have computed its "
                "schedule from it; pass its own number, if only gradient_accumulation_steps=1, to Accelerator"
            )
        self._training_begins(accelerator)
        loop.accumulates, loop.own = True, loop.own or 1
        self._count_batches(loop, loop.own)
        self.own_batch = loop.own_share * loop.own or None  # a script that accumulates by itself does not say
        # All Accelerators share it, and one whose loop accumulates by itself may have trained before.
        accelerator.gradient_state.plugin_kwargs.update(num_steps=accumulation(self._settings))
        return _within(loop, lambda: inherited(accelerator, *args, **kwargs))

    def _count_batches(self, loop: Loop, own: int) -> None:
        """Raise BadInputError if the script takes all batches of an optimizer step in its own count ahead.

        Only twice in a row is certain: a script may peek at a batch, or skip one, and train two models on the next.
        """
        for each in self._passes.loaders:
            if each.loop is not loop:
                continue
            each.given_before, each.given = (*each.given_before[-own:], each.given), 0
            if own not in (1, self._plan.accumulation) and each.given_before == (own, *[0] * (own - 1), own):
                raise BadInputError(
                    f"the script takes {own} batches ahead for each optimizer step, and plan {self._plan} makes "
                    f"{self._plan.accumulation} of them a step: pass "
                    "gradient_accumulation_steps=$(MEMTUNE_ACCUMULATION) to the script"
                )

    def _backward(self, inherited: Inherited, accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        loop = self._loop(accelerator)
        if not loop.accumulates:
            self._training_begins(accelerator)
            self._leave_accumulation_to_script(accelerator, loop)
        elif not loop.is_within and loop.own != self._plan.accumulation and self._passes.most_given(loop) > 1:
            raise BadInputError(
                "the script trains two batches outside of accelerator.accumulate(model), and has trained others within "
                "it: train each batch within it, or create an Accelerator for each training"
            )
        return inherited(accelerator, *args, **kwargs)

    def _leave_accumulation_to_script(self, accelerator: Any, loop: Loop) -> None:
        own = loop.own or 1
        if loop.own is not None and loop.length_was_read and own != self._plan.accumulation:
            raise BadInputError(
                f"the script accumulates {own} batches by itself, and plan {self._plan} asks for "
                f"{self._plan.accumulation}: train each batch within accelerator.accumulate(model), or pass "
                "gradient_accumulation_steps=$(MEMTUNE_ACCUMULATION) to the script"
            )
        # The loss is divided by the number that the script gave accelerate, as without a plan.
        accelerator.gradient_state.plugin_kwargs.update(num_steps=own)

    def _skip(self, inherited: Inherited, dataloader: Any, num_batches: int = 0) -> Any:
        if (followed := self._passes.of(dataloader)) is None:
            return inherited(dataloader, num_batches)
        behind = self._batches_behind(followed, num_batches)
        made = inherited(dataloader, behind)
        rest = self._passes.follow(made, followed.loop, followed.order)
        if followed.samples is not None:
            rest.samples = max(followed.samples - behind * self._plan.micro_batch, 0)
        return made

    def _batches_behind(self, followed: Followed, asked: int) -> int:
        """Return how many of the plan's batches to skip for the script's count; a resumed epoch's are known."""
        planned, own = self._plan.accumulation, followed.loop.own
        if self._settings.resume_from is None or self._has_skipped or not self._goes_on(followed.loop):
            return asked * planned // own if own else asked
        steps = self._settings.resumed_step
        epoch, steps_of_epoch = self._place(followed.batches)
        epochs_told = epoch * self._in_scripts_batches(followed.batches or 0, own)
        # Scripts count their own batches, or those that they got, now or under the plan that saved.
        units = (own or 1, planned, manifest.accumulation_of(self._settings.resume_from, planned))
        meant = {each for unit in units for each in (steps_of_epoch * unit, steps * unit - epochs_told)}
        if asked not in meant:
            raise BadInputError(
                f"the script skips {asked} batches of the epoch, and its checkpoint is {steps_of_epoch} optimizer "
                "steps into one: let it name its checkpoints after optimizer steps (accelerator.sync_gradients), and "
                "skip as many batches as these times its own gradient_accumulation_steps"
            )
        self._has_skipped = True
        self._is_resuming, self._passed_over = False, 0
        return steps_of_epoch * planned


@contextmanager
def _within(loop: Loop, accumulates: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    """Record in a loop whether the script is within a call of accumulate()."""
    with accumulates() as result:
        loop.is_within = True
        try:
            yield result
        finally:
            loop.is_within = False
