"""The loss scale of fp16, which lifts small gradients into its range."""

from __future__ import annotations

from typing import Any

# Below the 2**16 of torch and DeepSpeed: the steps that are skipped until a lower scale is found would differ from plan
# to plan, and with them the loss. It grows in time.
INITIAL_POWER = 12
_GROWTH_INTERVAL = 2000  # torch/amp/grad_scaler.py


class LossScaler:
    """One scale for all ranks: they agree because they all look at the same norm of the whole gradient.

    torch's GradScaler looks at each rank's own gradients, which are different shards under FSDP.
    """

    def __init__(self) -> None:
        self.scale = 2.0**INITIAL_POWER
        self._good_steps = 0

    def update(self, overflowed: bool) -> None:
        """Halve the scale after an overflow, double it after a long time without one."""
        self._good_steps = 0 if overflowed else self._good_steps + 1
        if overflowed:
            self.scale = max(self.scale / 2, 1.0)
        elif self._good_steps == _GROWTH_INTERVAL:
            self.scale, self._good_steps = self.scale * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.scale, self._good_steps = state["scale"], state["good_steps"]
