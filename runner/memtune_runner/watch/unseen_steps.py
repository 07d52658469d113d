"""Ends a training soon if its optimizer steps cannot be seen, instead of at its end or as a hang."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from memtune.wire.report import Device
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings

if TYPE_CHECKING:
    import torch  # the script may never import it

# Far more than most scripts make before their first step, such as for each task of a meta-learning.
_MOST_PASSES, _MOST_STEPS_OF_PASSES = 256, 32
# Weights that are loaded or reset now and then are not trained.
_CHANGES = 8
_WEIGHTS, _PLACES = 8, 3


def unseen_steps(backward_passes: int) -> str:
    """The message for a training whose optimizer, if it has one, is not seen."""
    return (
        f"{backward_passes} backward passes and no step of a torch optimizer: MemTune sees the steps of "
        "torch.optim.Optimizer alone, and of its subclasses whose __init__ calls super's; train with one of these"
    )


class UnseenSteps:
    """Looks at a few weights once there were many backward passes and no step.

    Many passes alone mean nothing: a script may estimate a Fisher matrix, prune, or accumulate before its first step.
    Only weights that change tell that something steps.
    """

    def __init__(self, settings: Settings, must_train: bool) -> None:
        self._limit = max(_MOST_PASSES, _MOST_STEPS_OF_PASSES * settings.plan.accumulation)
        # An emulated GPU computes nothing. A process that need not train may do anything.
        self._looks = must_train and settings.device is not Device.EMULATED
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._values = ""
        self._changes = 0

    def backward_begins(self, passes: int, steps: int, model: torch.nn.Module | None) -> None:
        """Raise BadInputError, also in a probe, if the weights change without a step that can be seen.

        ``model`` is the one that is trained, if its weights can be looked at.
        """
        if steps or passes < self._limit or not self._looks or model is None:
            return
        is_same = self._model is not None and self._model() is model
        # Not their versions, which an update of `.data` leaves as they are.
        before, self._values = self._values, _some_values(model)
        self._model = weakref.ref(model)
        self._changes += is_same and self._values != before
        if self._changes >= _CHANGES:
            raise BadInputError(f"the script has made {unseen_steps(passes)}")


def _some_values(model: torch.nn.Module) -> str:
    """A few elements of some trained weights as text, in which NaN equals itself."""
    # Sharded or quantized weights have other classes.
    weights = [each for each in model.parameters() if each.requires_grad and type(each).__name__ == "Parameter"]
    whole = [each.detach() for each in weights if each.numel() and not each.is_meta]
    some = whole[:: _stride(len(whole), _WEIGHTS)]
    return repr(
        [each[tuple(slice(None, None, _stride(size, _PLACES)) for size in each.shape)].tolist() for each in some]
    )


def _stride(size: int, places: int) -> int:
    return max(-(-size // places), 1)
