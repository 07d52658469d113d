"""Saves under some plans and resumes under others with the real DeepSpeed; prints the losses as JSON.

    python deepspeed_resume.py DIRECTORY CASES

CASES is a JSON list of pairs: the plan to save under, and the plan to resume under. Existing saves are reused, so that
another number of ranks can resume them.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memtune.plans.deepspeed_config import deepspeed_config
from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumption
from memtune_runner.checkpoints import Ranks, Store, convert, universal
from memtune_runner.checkpoints.complete_checkpoints import Checkpoint, complete_checkpoints
from memtune_runner.checkpoints.manifest import Manifest

STEPS = 3
_GLOBAL_BATCH = 8
_UNDISTURBED = "undisturbed.json"
_FEATURES, _HIDDEN, _CLASSES = 33, 65, 7  # odd, so that shards need padding


def engine_of(plan: Plan) -> Any:
    import deepspeed  # type: ignore[import-untyped]  # DeepSpeed ships no types

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_FEATURES, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, _CLASSES))
    # Two groups, since stage 3 is known to mix up their options.
    groups = [
        {"params": [each for each in model.parameters() if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in model.parameters() if each.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=deepspeed_config(plan, dist.get_world_size())
    )
    return engine


def train(engine: Any, plan: Plan, first_step: int) -> list[float]:
    """Return the mean loss of each step over all ranks."""
    dtype = engine.get_data_types()[0]
    return [_step(engine, plan, step, dtype) for step in range(first_step, first_step + STEPS)]


def _step(engine: Any, plan: Plan, step: int, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(_GLOBAL_BATCH, _FEATURES, generator=generator).to(dtype)
    wanted = torch.randn(_GLOBAL_BATCH, _CLASSES, generator=generator).to(dtype)
    share = plan.micro_batch * plan.accumulation
    total = torch.zeros(())
    for micro_step in range(plan.accumulation):
        start = dist.get_rank() * share + micro_step * plan.micro_batch
        rows = slice(start, start + plan.micro_batch)
        loss = (engine(inputs[rows]) - wanted[rows]).float().square().mean()
        engine.backward(loss)
        engine.step()
        total += loss.detach() / plan.accumulation
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def save(root: Path, plan: Plan) -> None:
    """Train, save, and continue, to record the following losses."""
    engine = engine_of(plan)
    train(engine, plan, 0)
    manifest = Manifest(STEPS, STEPS * _GLOBAL_BATCH, plan, dist.get_world_size(), Format.DEEPSPEED, attempt=0)
    store = Store(root, 0, Ranks(dist.get_rank(), dist.get_rank(), dist.barrier))
    store.save(lambda directory: engine.save_checkpoint(directory, tag="shards"), manifest)
    undisturbed = train(engine, plan, STEPS)
    if dist.get_rank() == 0:
        (root / _UNDISTURBED).write_text(json.dumps(undisturbed))
    dist.barrier()


def resume(root: Path, plan: Plan) -> dict[str, Any]:
    # An earlier case's conversion is beside it, and would work as well.
    source = next(each for each in complete_checkpoints(root) if each.manifest.format is Format.DEEPSPEED)
    if dist.get_rank() == 0:
        _form_for(source, plan)
    dist.barrier()
    directory = _form_for(source, plan)
    engine = engine_of(plan)
    loaded, _ = engine.load_checkpoint(directory)
    assert loaded, f"DeepSpeed found nothing in {directory}"
    losses = train(engine, plan, STEPS)
    options = [(group["lr"], group["weight_decay"]) for group in engine.basic_optimizer.param_groups]
    undisturbed = json.loads((root / _UNDISTURBED).read_text())
    converted = directory != source.directory
    return {"losses": losses, "undisturbed": undisturbed, "options": options, "converted": converted}


def _form_for(source: Checkpoint, plan: Plan) -> Path:
    """What the table says; if it says impossible, what would work best with DeepSpeed."""
    saved, world = source.manifest.plan, dist.get_world_size()
    if resumption(Format.DEEPSPEED, saved, plan, source.manifest.world == world).way is not Way.IMPOSSIBLE:
        return convert.converted(source, plan, world)
    if saved.sharding is plan.sharding or not saved.sharding.zero_stage:
        return source.directory
    forced = source.directory.with_name("forced")
    if not forced.exists():
        universal.convert(source.directory, forced)
    return forced


def main(root: Path, cases: list[list[str]]) -> None:
    import deepspeed.ops  # type: ignore[import-untyped]  # as above
    from deepspeed.runtime.engine import DeepSpeedEngine  # type: ignore[import-untyped]  # as above

    # Its shared-memory collectives would have to be compiled; gloo's are enough.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    universal.detect_universal_checkpoints(DeepSpeedEngine)
    dist.init_process_group("gloo")
    for saved, wanted in cases:
        place = root / saved
        is_saved = place.exists()
        dist.barrier()
        if not is_saved:
            save(place, Plan.parse(saved))
        told: dict[str, Any] = {"saved": saved, "wanted": wanted}
        try:
            told |= resume(place, Plan.parse(wanted))
        except Exception:
            told["error"] = traceback.format_exc()
        if dist.get_rank() == 0:
            print("told: " + json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
