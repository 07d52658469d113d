"""Pipeline parallelism as its first stage alone: the stages after it are not there."""

from __future__ import annotations

from typing import Any


def answer_for_the_next_stage(stages: Any) -> None:
    """Answer what torch asks the next stage for before the first step: the gradients of what this stage gives it.

    They have the shapes of what it gives. ``stages`` is `torch.distributed.pipelining.stage`.
    """
    if not hasattr(stages, "_StageBackwardMeta"):
        return  # older releases ask for shapes of inputs only, which the first stage has
    plain = stages.PipelineStage._recv_meta

    def receive(stage: Any, source: int) -> Any:
        if source != stage.stage_index + 1:
            return plain(stage, source)
        return stages._StageBackwardMeta(backward_metas=stages._derive_grad_metas(stage._stage_meta.outputs))

    stages.PipelineStage._recv_meta = receive
