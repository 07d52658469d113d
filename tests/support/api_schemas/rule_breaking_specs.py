"""For each rule over several fields, specs that break only that rule, and specs that break none."""

from __future__ import annotations

from typing import Any

from valid_spec import POD, spec

EXPERTS = {"count": 4, "perToken": 2, "ffnSize": 64}
IMAGE = {"size": 224, "patchSize": 16}
CLAIM = {"persistentVolumeClaim": {"claimName": "a"}}
DISK = {"nvmePath": "/mnt/nvme"}
NFS = {"nfs": {"server": "files", "path": "/a"}}


def fixed(plan: str, **changes: Any) -> dict[str, Any]:
    """Return a spec in mode Fixed."""
    return spec(tuning={"mode": "Fixed", "plan": plan}, **changes)


# For each rule, by the first words of its message: specs that break only that rule, and the field to blame.
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("give exactly one of hfConfig", spec(model={"architecture": None}), "spec.model"),
    ("give exactly one of hfConfig", spec(model={"hfConfig": {}}), "spec.model"),
    ("give exactly one of hfConfig", spec(model={"factory": "a:b"}, template=POD), "spec.model"),
    ("model.factory is", spec(model={"architecture": None, "factory": "a:b"}), "spec.model.factory"),
    ("factoryArguments are", spec(model={"factoryArguments": {"depth": 4}}), "spec.model.factoryArguments"),
    (
        "a factory builds",
        spec(model={"architecture": None, "factory": "a:b", "peft": {}}, template=POD),
        "spec.model.peft",
    ),
    (
        "a trace has no KV cache",
        spec(
            model={"architecture": None, "factory": "a:b"},
            training__evaluation={"batchSize": 1, "generates": True},
            template=POD,
        ),
        "spec.training.evaluation.generates",
    ),
    (
        "a trace has the lengths",
        spec(model={"architecture": None, "factory": "a:b"}, training={"targetLength": 64}, template=POD),
        "spec.training.targetLength",
    ),
    (
        "a trace has one length",
        spec(model={"architecture": None, "factory": "a:b"}, training={"varyingLengths": True}, template=POD),
        "spec.training.varyingLengths",
    ),
    ("integration reaches", spec(integration="sdk"), "spec.integration"),
    *(
        (f"tuning.space.{field} is for", spec(tuning__space={field: value}, template=POD), f"spec.tuning.space.{field}")
        for field, value in (("attention", ["eager"]), ("fusedLoss", [False, True]), ("optimizer", ["adamw", "sgd"]))
    ),
    *(
        (
            said,
            spec(
                model={"architecture": None, "factory": "a:b"},
                tuning__space={field: value},
                template=POD,
                integration="sdk",
            ),
            f"spec.tuning.space.{field}",
        )
        for said, field, value in (
            ("a trace has one attention", "attention", ["eager"]),
            ("a trace has one loss", "fusedLoss", [True]),
        )
    ),
    (
        "tuning.space.optimizer: with",
        spec(tuning__space={"optimizer": ["adamw", "muon"]}, template=POD, integration="hf-trainer"),
        "spec.tuning.space.optimizer",
    ),
    (
        "training.globalBatchSize must",
        spec(training={"globalBatchSize": 97}, resources={"nodes": 2}),
        "spec.training.globalBatchSize",
    ),
    (
        "tuning.space.microBatch: one",
        spec(tuning__space={"microBatch": [5, 7]}),
        "spec.tuning.space.microBatch",
    ),
    (
        "tuning.space.microBatch: one",
        spec(resources={"gpusPerNode": 8}, tuning__space={"microBatch": [16]}),
        "spec.tuning.space.microBatch",
    ),
    (
        "tuning.space.fsdpStrategies: hybrid",
        spec(tuning__space={"fsdpStrategies": ["hybrid"]}),
        "spec.tuning.space.fsdpStrategies",
    ),
    ("device virtual", spec(resources={"device": "virtual"}), "spec.resources.gpuMemory"),
    ("device emulated", spec(resources={"device": "emulated"}), "spec.resources.gpuProduct"),
    ("shrink takes", spec(resources={"shrink": {"afterStep": 3, "by": "40%"}}), "spec.resources.shrink"),
    (
        "CUDA shows",
        spec(resources={"gpuResource": "nvidia.com/mig-1g.10gb", "gpusPerNode": 2}),
        "spec.resources.gpusPerNode",
    ),
    ("offload nvme writes", spec(tuning__space={"offload": ["none", "nvme"]}), "spec.resources.nvmePath"),
    ("offload nvme writes", fixed("bf16-z3-none-mb12x8-onvme"), "spec.resources.nvmePath"),
    ("parallelProbes must", spec(tuning={"maxProbes": 2, "parallelProbes": 3}), "spec.tuning.parallelProbes"),
    ("plans are emulated", spec(tuning={"emulation": "Auto", "mode": "PredictOnly"}), "spec.tuning.emulation"),
    (
        "device emulated emulates every run",
        spec(
            tuning={"emulation": "Only"},
            resources={"gpusPerNode": 1, "device": "emulated", "gpuProduct": "h100-80gb"},
        ),
        "spec.tuning.emulation",
    ),
    ("slack trades", spec(tuning={"slack": "5%"}), "spec.tuning.slack"),
    ("on one GPU product", spec(tuning={"objectives": ["throughput", "cost"]}), "spec.tuning.objectives"),
    *(
        ("objectives: cost chooses", spec(tuning={"objectives": ["cost"]}, **changes), "spec.tuning.objectives")
        for changes in (
            {"resources": {"gpuProduct": "h100-80gb"}},
            {"resources": {"gpuMemory": "80Gi"}},
            {"resources": {"device": "virtual", "gpuMemory": "80Gi"}},
            {"model": {"architecture": None, "factory": "a:b"}, "template": POD},
        )
    ),
    (
        "objectives: cost chooses",
        spec(tuning={"objectives": ["cost"], "mode": "Fixed", "plan": "bf16-z2-sel-mb12x8"}),
        "spec.tuning.objectives",
    ),
    ("slack trades", spec(tuning={"slack": "5%", "objectives": ["memory"]}), "spec.tuning.slack"),
    (
        "offload optimizer needs",
        spec(tuning__space={"offload": ["optimizer"], "backends": ["fsdp"]}),
        "spec.tuning.space.offload",
    ),
    (
        "offload optimizer+parameters needs",
        spec(tuning__space={"offload": ["optimizer+parameters"], "backends": ["deepspeed"], "zeroStages": [2]}),
        "spec.tuning.space.offload",
    ),
    (
        "offload nvme needs",
        spec(tuning__space={"offload": ["nvme"], "backends": ["fsdp"]}, resources=DISK),
        "spec.tuning.space.offload",
    ),
    (
        "offload nvme needs",
        spec(tuning__space={"offload": ["nvme"], "zeroStages": [1, 2]}, resources=DISK),
        "spec.tuning.space.offload",
    ),
    ("plan is what", spec(tuning={"mode": "Fixed"}), "spec.tuning.plan"),
    ("plan is what", spec(tuning={"plan": "bf16-z2-sel-mb12x8"}), "spec.tuning.plan"),
    ("tuning.plan: micro", fixed("bf16-z2-sel-mb4x8"), "spec.tuning.plan"),
    ("tuning.plan: micro", fixed("bf16-z2-sel-mb12x8-bk50m", resources={"gpusPerNode": 2}), "spec.tuning.plan"),
    ("tuning.plan must have the optimizer", fixed("bf16-z1-sel-mb12x8-lion"), "spec.tuning.plan"),
    (
        "tuning.plan must have the optimizer",
        fixed("bf16-z1-sel-mb12x8", training={"optimizer": "adamw-8bit"}),
        "spec.tuning.plan",
    ),
    ("tuning.plan must have g32", fixed("bf16-z2-sel-mb12x8-g32"), "spec.tuning.plan"),
    ("tuning.plan must have g32", fixed("bf16-z2-sel-mb12x8", training={"gradientDtype": "fp32"}), "spec.tuning.plan"),
    ("tuning.plan must have the attention", fixed("bf16-z2-sel-mb12x8-eager"), "spec.tuning.plan"),
    ("plan has two options", fixed("bf16-z2-sel-mb12x8-exp-fl-exp"), "spec.tuning.plan"),
    ("plan: oopt needs", fixed("bf16-ddp-sel-mb12x8-oopt"), "spec.tuning.plan"),
    ("plan: oopt needs", fixed("bf16-z2-sel-mb12x8-oparam"), "spec.tuning.plan"),
    ("plan: oopt needs", fixed("bf16-fsdpsgo-sel-mb12x8-oopt"), "spec.tuning.plan"),
    (
        "plan: adamw8bit has",
        fixed("bf16-z1-sel-mb12x8-adamw8bit-oopt", training={"optimizer": "adamw-8bit"}),
        "spec.tuning.plan",
    ),
    ("plan: muon and", fixed("bf16-z2-sel-mb12x8-muon", training={"optimizer": "muon"}), "spec.tuning.plan"),
    (
        "plan: muon and",
        fixed("bf16-fsdp-sel-mb12x8-adafactor", training={"optimizer": "adafactor"}),
        "spec.tuning.plan",
    ),
    ("plan: DeepSpeed keeps", fixed("bf16-z0-sel-mb12x8-g32", training={"gradientDtype": "fp32"}), "spec.tuning.plan"),
    ("plan: flash attention", fixed("fp32-z2-sel-mb12x8"), "spec.tuning.plan"),
    ("give exactly one of persistent", spec(checkpoint={"volume": {}}), "spec.checkpoint.volume"),
    ("give exactly one of persistent", spec(checkpoint={"volume": CLAIM | NFS}), "spec.checkpoint.volume"),
    ("heads must be", spec(model__architecture={"kvHeads": 3}), "spec.model.architecture.kvHeads"),
    ("hiddenSize cannot", spec(model__architecture={"heads": 5}), "spec.model.architecture.headDim"),
    (
        "an encoder-decoder",
        spec(model__architecture={"kind": "encoder-decoder"}),
        "spec.model.architecture.encoderLayers",
    ),
    ("an encoder-decoder", spec(model__architecture={"encoderLayers": 2}), "spec.model.architecture.encoderLayers"),
    (
        "experts.perToken",
        spec(model__architecture={"experts": EXPERTS | {"perToken": 5}}),
        "spec.model.architecture.experts.perToken",
    ),
    (
        "experts.denseLayers",
        spec(model__architecture={"experts": EXPERTS | {"denseLayers": 2}}),
        "spec.model.architecture.experts.denseLayers",
    ),
    ("ffnSize is", spec(model__architecture={"ffnSize": None}), "spec.model.architecture.ffnSize"),
    (
        "ffnSize is",
        spec(model__architecture={"ffnSize": None, "experts": EXPERTS | {"denseLayers": 1}}),
        "spec.model.architecture.ffnSize",
    ),
    ("vocabSize is", spec(model__architecture={"vocabSize": None}), "spec.model.architecture.vocabSize"),
    ("kind vision needs", spec(model__architecture={"kind": "vision"}), "spec.model.architecture.image"),
    ("kind vision needs", spec(model__architecture={"image": IMAGE}), "spec.model.architecture.image"),
    ("labelCount", spec(model__architecture={"head": "classifier"}), "spec.model.architecture.labelCount"),
    ("labelCount", spec(model__architecture={"labelCount": 2}), "spec.model.architecture.labelCount"),
]

GOOD: list[dict[str, Any]] = [
    spec(),
    spec(model={"architecture": None, "hfConfig": {}}),
    spec(model={"architecture": None, "factory": "a:b"}, template=POD),
    spec(model={"architecture": None, "hfConfig": {}}, training={"targetLength": 64, "varyingLengths": True}),
    spec(integration="sdk", template=POD),
    spec(resources={"nodes": 2, "gpusPerNode": 8}, tuning__space={"fsdpStrategies": ["hybrid"]}),
    spec(resources={"device": "virtual", "gpuMemory": "2Gi"}),
    spec(resources={"device": "emulated", "gpuProduct": "h100-80gb", "shrink": {"afterStep": 3, "by": "40%"}}),
    spec(resources={"device": "virtual", "gpuMemory": "2Gi", "shrink": {"afterStep": 3, "by": "40%"}}),
    spec(tuning__space={"microBatch": [5, 12]}, resources={"gpusPerNode": 8}),
    spec(tuning={"maxProbes": 2, "parallelProbes": 2}),
    fixed("bf16-z2-sel-mb12x8"),
    fixed("bf16-z2-sel-mb12x4-oopt-bk50m", resources={"gpusPerNode": 2}),
    fixed("bf16-z2-sel-mb12x8-lion", training={"optimizer": "lion"}),
    spec(tuning__space={"offload": ["optimizer+parameters"], "backends": ["fsdp"]}),
    spec(
        tuning__space={"offload": ["optimizer+parameters", "nvme"], "backends": ["deepspeed"], "zeroStages": [3]},
        resources={"nvmePath": "/mnt/nvme"},
    ),
    spec(tuning__space={"offload": ["none", "activations"], "backends": ["ddp"]}),
    spec(resources={"gpuHourPrice": 2}),
    spec(resources={"gpuProduct": "NVIDIA-L4", "gpuHourPrice": 0.25}),
    spec(checkpoint={"volume": CLAIM}),
    spec(checkpoint={"volume": NFS}),
    spec(checkpoint={"volume": {"hostPath": {"path": "/a"}}}),
    spec(checkpoint={}),
    spec(model__architecture={"heads": 5, "headDim": 16, "kvHeads": 1}),
    spec(model__architecture={"kind": "encoder-decoder", "encoderLayers": 2}),
    spec(model__architecture={"experts": EXPERTS | {"denseLayers": 1}}),
    spec(model__architecture={"ffnSize": None, "experts": EXPERTS}),
    spec(model__architecture={"kind": "vision", "vocabSize": None, "image": IMAGE}),
    spec(model__architecture={"head": "classifier", "labelCount": 2}),
]
