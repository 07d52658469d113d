"""The loss scale for fp16."""

from __future__ import annotations

from typing import Any

# Below the 2**16 of torch and DeepSpeed: the number of steps skipped until a lower scale is found would differ between
# plans, and the loss with it. The scale grows in time.
INITIAL_POWER = 12
_GROWTH_INTERVAL = 2000  # torch/amp/grad_scaler.py


class LossScaler:
    """One scale for all ranks, derived from the norm of the whole gradient.

    torch's GradScaler looks at each rank's own gradients, which are different shards under FSDP.
    """

    def __init__(self) -> None:
        self.scale = 2.0**INITIAL_POWER
        self._good_steps = 0

    def update(self, overflowed: bool) -> None:
        """Halve the scale after an overflow; double it after a long time without one."""
        self._good_steps = 0 if overflowed else self._good_steps + 1
        if overflowed:
            self.scale = max(self.scale / 2, 1.0)
        elif self._good_steps == _GROWTH_INTERVAL:
            self.scale, self._good_steps = self.scale * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.scale, self._good_steps = state["scale"], state["good_steps"]
