"""DeepSpeed's universal checkpoints: whole tensors by name, for any number of ranks.

Conversions from stages 1 and 2 can be read by stages 1 to 3; those from stage 3 only by stage 3.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

# DeepSpeed's own names for the file that names the newest checkpoint, plain and universal.
_NEWEST = "latest"
_NEWEST_UNIVERSAL = "latest_universal"
# The file in which stage 3 looks for the model's states.
_MODEL_STATES = "zero_pp_rank_0_mp_rank_00_model_states.pt"
_WRAPPED = "_memtune_universal"


def convert(source: Path, target: Path) -> None:
    """Write the universal form of a DeepSpeed checkpoint to ``target``, with everything that lies beside its shards."""
    from deepspeed.checkpoint import ds_to_universal  # type: ignore[import-untyped]  # DeepSpeed ships no types

    tag = (source / _NEWEST).read_text(encoding="utf-8").strip()
    target.mkdir(parents=True)
    options = argparse.Namespace(
        input_folder=str(source / tag),
        output_folder=str(target / tag),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    ds_to_universal.main(options)
    _fit_stage_3(target / tag)
    (target / _NEWEST).write_text(tag, encoding="utf-8")
    _copy_rest(source, target, tag)


def detect_universal_checkpoints(engine_class: Any) -> None:
    """Make ``DeepSpeedEngine.load_checkpoint`` detect universal checkpoints itself.

    DeepSpeed expects a flag in its configuration, which is written before the checkpoint to resume from is known.
    """
    original = engine_class.load_checkpoint
    if hasattr(original, _WRAPPED):
        return

    def load_checkpoint(engine: Any, load_dir: Any, *args: Any, **kwargs: Any) -> Any:
        newest = Path(load_dir) / _NEWEST_UNIVERSAL
        if not newest.is_file():
            return original(engine, load_dir, *args, **kwargs)
        engine._config.load_universal_checkpoint = True
        before = [dict(group) for group in engine.basic_optimizer.param_groups]
        try:
            loaded = original(engine, load_dir, *args, **kwargs)
        finally:
            engine._config.load_universal_checkpoint = False
        _keep_groups_apart(engine.basic_optimizer, before)
        _restore_buffers(engine, Path(load_dir) / newest.read_text(encoding="utf-8").strip())
        return loaded

    setattr(load_checkpoint, _WRAPPED, True)
    engine_class.load_checkpoint = load_checkpoint


def _fit_stage_3(folder: Path) -> None:
    """Add the fields that stage 3 expects to what lower stages have written."""
    import torch

    if (folder / _MODEL_STATES).exists():
        return  # stage 3 wrote it
    shutil.copy2(folder / "mp_rank_00_model_states.pt", folder / _MODEL_STATES)
    counter = next((folder / "zero").rglob("step.pt"))
    step = torch.load(counter, map_location="cpu", weights_only=False)
    common_path = folder / "zero" / "optimizer_state.pt"
    common = torch.load(common_path, map_location="cpu", weights_only=False)
    states = {"state": {0: {"step": step}}, "param_groups": common["param_groups"]}
    torch.save({**common, "optimizer_state_dict": states}, common_path)


def _restore_buffers(engine: Any, folder: Path) -> None:
    """Restore buffers: from a universal checkpoint, DeepSpeed restores only parameters."""
    import torch

    buffers = dict(engine.module.named_buffers())
    if not buffers:
        return
    saved = torch.load(folder / _MODEL_STATES, map_location="cpu", weights_only=False)["module"]
    for name in buffers.keys() & saved.keys():
        buffers[name].copy_(saved[name])


def _keep_groups_apart(optimizer: Any, before: list[dict[str, Any]]) -> None:
    """Undo that stage 3 gives every parameter group the first one's options, and all tensors one step counter.

    Only the learning rate is kept of the loaded options. A shared counter would count the steps of each tensor; loaded
    from a file, it lies in host memory, where a fused GPU kernel cannot read it.
    """
    for group, options in zip(optimizer.param_groups, before, strict=True):
        group.update({name: value for name, value in options.items() if name not in ("params", "lr")})
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    for weight, state in optimizer.state.items():
        step = state.get("step")
        if hasattr(step, "clone"):
            state["step"] = step.to(weight.device, copy=True) if is_fused else step.clone()


def _copy_rest(source: Path, target: Path, tag: str) -> None:
    """Copy the scheduler, random states and all other files that an integration wrote beside the shards."""
    for path in source.iterdir():
        if path.name in (tag, _NEWEST) or path.name.startswith((".", "memtune-")):
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copy2(path, target / path.name)
