"""Pipeline parallelism as the stages of one rank alone: those before and after them are not there."""

from __future__ import annotations

from typing import Any


def answer_for_other_stages(stages: Any) -> None:
    """Answer what torch asks other stages for before the first step.

    The next stage would send gradients, in the shapes of what it is given. The one before would send the shapes of what
    it gives: the script may say them; else they are those of what another stage of this rank gives.
    ``stages`` is `torch.distributed.pipelining.stage`.
    """
    if not hasattr(stages, "_StageBackwardMeta"):
        return  # older releases ask for shapes of inputs only, which the first stage has
    given: list[Any] = []
    plain = stages.PipelineStage._send_meta

    def send(stage: Any, meta: Any, target: int) -> None:
        if target == stage.stage_index + 1:
            given.append(meta)
        plain(stage, meta, target)

    def receive(stage: Any, source: int) -> Any:
        if source == stage.stage_index + 1:
            return stages._StageBackwardMeta(backward_metas=stages._derive_grad_metas(stage._stage_meta.outputs))
        if stage._user_meta.inputs:
            return stages._StageForwardMeta(forward_metas=stage._user_meta.inputs)
        if given:
            return given[0]
        raise RuntimeError(
            f"stage {stage.stage_index} of the pipeline would be told by the stage before, which runs on another rank, "
            "what shapes it is given, and on the emulated GPU no other rank runs; pass input_args to PipelineStage"
        )

    stages.PipelineStage._send_meta, stages.PipelineStage._recv_meta = send, receive
