"""Saves as models of diffusers 0.42 do: on each rank that calls, and what the model says that it has."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import nn


class ModelMixin(nn.Module):
    """What of diffusers' class of this name saves a model."""

    def save_pretrained(self, save_directory: str, is_main_process: bool = True, **_: object) -> None:
        """Write the weights; ``is_main_process`` decides only whether the configuration is written, too."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        save_file(
            {name: each.contiguous() for name, each in self.state_dict().items()}, f"{save_directory}/model.safetensors"
        )
        if is_main_process:
            Path(save_directory, "config.json").write_text("{}")
