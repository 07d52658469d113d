"""torchtune's own recipes for one GPU, on packed rows of zero tokens.

Run by `memtune emulate`, with a Python that has torchtune: RECIPE CONFIG [KEY=VALUE ...]. Nothing is read from disk: no
tokenizer, data set or checkpoint, whose weights would be copied over existing ones.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
import torchtune  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]
from torchtune import modules, training
from torchtune.data import padded_collate_packed  # type: ignore[import-not-found]

STEPS, SAMPLE = 2, 128
_CLASSES = {
    "full_finetune_single_device": "FullFinetuneRecipeSingleDevice",
    "lora_finetune_single_device": "LoRAFinetuneRecipeSingleDevice",
}


class Sampler:
    """The part of a sampler that the loop uses."""

    def set_epoch(self, epoch: int) -> None:
        """Rows are all alike."""


def batch(rows: int, length: int) -> dict[str, Any]:
    """Rows of samples that are all alike, with the mask that keeps them apart."""
    tokens = torch.zeros(length, dtype=torch.long)
    lengths = torch.full((length // SAMPLE,), SAMPLE)
    row = {"tokens": tokens, "labels": tokens, "input_pos": torch.arange(length) % SAMPLE, "seq_lens": lengths}
    return dict(padded_collate_packed([row] * rows))


def without_disks(recipe: Any, rows: int, length: int) -> Any:
    """The recipe with inputs from memory."""

    class Emulated(recipe):  # type: ignore[misc]  # its class is known when it runs
        def load_checkpoint(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {training.MODEL_KEY: {}}

        def save_checkpoint(self, *_: Any, **__: Any) -> None:
            pass

        def _setup_data(self, *_: Any, **__: Any) -> tuple[Sampler, list[dict[str, Any]]]:
            return Sampler(), [batch(rows, length) for _ in range(STEPS * self._gradient_accumulation_steps)]

    modules.TransformerDecoder.load_state_dict = lambda *_, **__: ([], [])
    return Emulated


def loaded(recipes: Path, name: str) -> Any:
    """A recipe's class. Recipes are files beside the package that cannot be imported from it."""
    spec = spec_from_file_location(name, recipes / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, _CLASSES[name])


def main() -> None:
    """Two steps."""
    recipe, config, *options = sys.argv[1:]
    given = OmegaConf.from_dotlist(options)
    recipes = Path(torchtune.__file__).parent.parent / "recipes"
    settings = OmegaConf.merge(OmegaConf.load(recipes / "configs" / f"{config}.yaml"), given)
    settings.tokenizer = {"_component_": "builtins.dict"}
    with tempfile.TemporaryDirectory() as directory:
        settings.output_dir = directory
        emulated = without_disks(loaded(recipes, recipe), settings.batch_size, settings.length)(cfg=settings)
        emulated.setup(cfg=settings)
        emulated.train()


if __name__ == "__main__":
    main()
