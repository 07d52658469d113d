"""The user's template: what passes through, which container is wrapped, and which values are refused."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed_texts import texts
from tiny_rehearsal import ARCHITECTURE

from memtune.api import Job, load_job
from memtune.plans.plan import Plan
from memtune.wire import environment
from memtune.wire.names import run_name
from memtune.wire.run import Checkpointed, Run, RunKind
from memtune_operator.kubernetes.nodes import candidates
from memtune_operator.pods import manifests
from memtune_operator.pods.bootstrap import BOOTSTRAP
from memtune_operator.pods.placement import REQUIRED
from memtune_operator.pods.wrapped_container import CommandRequiredError, TemplateError, wrapped_index

PROBE = Run(RunKind.PROBE, 0, Plan.parse("bf16-z2-sel-mb4x8"), seconds=298)
GPU = "nvidia.com/gpu"


def job(template: Any, **spec: Any) -> Job:
    return load_job(
        {
            "apiVersion": "memtune.dev/v1alpha1",
            "kind": "MemoryTunedJob",
            "metadata": {"name": "llama", "uid": "1"},
            "spec": {
                "model": {"factory": "train:build"},
                "training": {"globalBatchSize": 32, "sequenceLength": 128},
                "resources": {"gpusPerNode": 2},
                "template": template,
                **spec,
            },
        }
    )


def template(pod: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    trainer = {"name": "train", "image": "mine:1", "command": ["python", "train.py"], **container}
    return {"spec": {"containers": [trainer], **(pod or {})}}


def pod_of(template: Any, run: Run = PROBE, **spec: Any) -> dict[str, Any]:
    return manifests.pods(job(template, **spec), run, "runner:1")[0]


def environment_of(made: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in made["spec"]["containers"][0]["env"]}


def refusal_of(template: Any, **spec: Any) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        pod_of(template, **spec)
    return caught.value


@pytest.mark.parametrize(
    ("containers", "index"),
    [
        ([{"name": "a"}], 0),
        ([{"name": "a"}, {"name": "trainer"}], 1),
        ([{"name": "a", "resources": {"limits": {GPU: 1}}}, {"name": "trainer"}], 1),
        ([{"name": "a"}, {"name": "b", "resources": {"limits": {GPU: 1}}}], 1),
        ([{"name": "a", "resources": {"requests": {GPU: "1"}}}, {"name": "b"}], 0),
    ],
)
def test_which_container_is_wrapped(containers: list[dict[str, Any]], index: int) -> None:
    assert wrapped_index(containers, GPU) == index


def test_a_template_with_an_ambiguous_container_is_refused() -> None:
    two = [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]
    refusal = refusal_of({"spec": {"containers": two}})
    assert refusal.reason == "TrainerUnknown"
    assert "(a, b)" in str(refusal)


@pytest.mark.parametrize("command", [None, []])
def test_a_command_is_required_and_the_refusal_says_the_line(command: Any) -> None:
    with pytest.raises(CommandRequiredError, match=r'command: \["torchrun", "train.py"\]') as caught:
        pod_of(template(command=command))
    assert caught.value.reason == "CommandRequired"


def test_a_framework_that_the_integration_does_not_support_is_refused_by_its_command() -> None:
    with pytest.raises(TemplateError, match=r"\[.*\]\.command: integration env does not support Axolotl") as caught:
        pod_of(template(command=["accelerate", "launch"], args=["-m", "axolotl.cli.train", "config.yaml"]))
    assert caught.value.reason == "TemplateRejected"


def test_the_command_is_wrapped_and_the_arguments_stay() -> None:
    trainer = pod_of(template(args=["$(MEMTUNE_MICRO_BATCH)"]), runner={"python": "/opt/py/bin/python"})
    container = trainer["spec"]["containers"][0]
    assert container["command"] == ["/opt/py/bin/python", "-c", BOOTSTRAP, "launch", "--", "python", "train.py"]
    assert container["args"] == ["$(MEMTUNE_MICRO_BATCH)"]


def test_the_kubelet_ends_a_probe_that_nobody_else_does_and_no_training() -> None:
    train = Run(RunKind.TRAIN, 1, PROBE.plan)
    assert pod_of(template())["spec"]["activeDeadlineSeconds"] == 300 + 4 * 3600
    assert pod_of(template({"activeDeadlineSeconds": 60}))["spec"]["activeDeadlineSeconds"] == 60
    assert "activeDeadlineSeconds" not in pod_of(template(), train)["spec"]
    assert pod_of(template({"activeDeadlineSeconds": 60}), train)["spec"]["activeDeadlineSeconds"] == 60
    endless = pod_of(template({"activeDeadlineSeconds": 2**31}), tuning={"maxGpuSeconds": 2**40})
    assert endless["spec"]["activeDeadlineSeconds"] == 2**31 - 1, "the API server takes no more"


def test_the_bootstrap_keeps_the_images_pythonpath(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr("os.execv", lambda program, words: started.append((program, words)))
    monkeypatch.setattr("sys.argv", ["-c", "launch", "--", "python", "train.py"])
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    for own, expected in [("/app", "/memtune/runner:/app"), ("", "/memtune/runner")]:
        monkeypatch.setenv("PYTHONPATH", own)
        exec(BOOTSTRAP, {})
        assert os.environ["PYTHONPATH"] == expected
    words = ["/usr/bin/python3", "-m", "memtune_runner", "launch", "--", "python", "train.py"]
    assert started == [("/usr/bin/python3", words)] * 2


CONFLICTS = [
    (template({"restartPolicy": "OnFailure"}), "OnFailure"),
    (template({"hostname": "mine"}), "spec.hostname"),
    (template({"subdomain": "mine"}), "spec.subdomain"),
    (template({"volumes": [{"name": "memtune-shm", "emptyDir": {}}]}), "rename it"),
    (template({"initContainers": [{"name": "memtune-runner", "image": "x"}]}), "rename it"),
    ({"metadata": {"labels": {"memtune.dev/job": "x"}}, **template()}, "memtune.dev/job"),
    (
        {
            "metadata": {
                "labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/pod-group-name": "mine"},
            },
            **template(),
        },
        "pod-group-name",
    ),
    ({"metadata": {"name": "mine"}, **template()}, "metadata.name"),
    (template(env=[{"name": "MEMTUNE_PLAN", "value": "x"}]), "MEMTUNE_PLAN"),
    (template(env=[{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "x"}]), "PYTORCH_CUDA_ALLOC_CONF"),
    (template(env=[{"name": "WORLD_SIZE", "value": "4"}]), "WORLD_SIZE"),
    (template(resources={"limits": {GPU: 4}}), "4 of nvidia.com/gpu is not the 2"),
    (template(volumeMounts=[{"name": "x", "mountPath": "/memtune/"}]), "/memtune"),
    (template(ports=[{"containerPort": 9400}]), "9400"),
    (template(ports=[{"name": "memtune-metrics", "containerPort": 1}]), "memtune-metrics"),
]
CONFLICTS += [
    (template(restartPolicy="OnFailure"), "spec.containers[train].restartPolicy: it would let the kubelet relaunch"),
    (template(restartPolicyRules=[{"action": "Restart"}]), "restartPolicyRules: it would let the kubelet relaunch"),
]


@pytest.mark.parametrize(("given", "words"), CONFLICTS)
def test_a_value_that_contradicts_the_plan_is_refused_with_its_place(given: dict[str, Any], words: str) -> None:
    refusal = refusal_of(given)
    assert refusal.reason == "TemplateConflict"
    assert str(refusal).startswith("spec.template.")
    assert words in str(refusal)


def test_an_init_container_of_another_shape_is_refused_with_its_place() -> None:
    refusal = refusal_of(template({"initContainers": [{"name": "setup", "image": "x", "ports": 5}]}))
    assert refusal.reason == "TemplateRejected"
    assert "spec.initContainers[setup].ports: it is int, not a list" in str(refusal)


def test_a_checkpoint_volume_and_a_mount_of_the_users_at_the_same_path_are_refused() -> None:
    volume = {"path": "/saves", "volume": {"nfs": {"server": "nas", "path": "/x"}}}
    refusal = refusal_of(template(volumeMounts=[{"name": "x", "mountPath": "/saves"}]), checkpoint=volume)
    assert "keep one of the two" in str(refusal)


SHAPES = [{}, {"spec": None}, {"spec": []}, {"spec": {"containers": []}}, {"spec": {"containers": "x"}}]
SHAPES += [{"spec": {"containers": [part]}} for part in ("x", {}, {"name": 1})]
SHAPES += [template(None, **{part: "x"}) for part in ("command", "args", "env", "ports", "volumeMounts", "resources")]
SHAPES += [template({"securityContext": "x"}), template({"affinity": [1]}), template(terminationMessagePath=1)]
SHAPES += [template(env=[{"value": "no name"}]), template(command=[1]), template(resources={"limits": [1]})]
SHAPES += [
    template({"volumes": {"a": 1}}),
    template({"affinity": {"podAntiAffinity": "x"}}),
    template({"affinity": {"podAntiAffinity": {REQUIRED: "x"}}}),
    template(env=[{"name": "SEED", "value": 5}]),
    template(env=[{"name": "SEED", "value": 0}]),
    template(volumeMounts=[{"mountPath": "/data", "name": ["data"]}]),
    template(workingDir=5),
    template(image=["mine:1"]),
    template({"nodeSelector": "gpu"}),
    template({"tolerations": {"operator": "Exists"}}),
    template({"tolerations": ["all"]}),
    {"metadata": [1], **template()},
    {"metadata": {"labels": "x"}, **template()},
]


WANTED = [["a"], 5, [{"operator": "In"}], [{"key": "a", "operator": ["In"]}], [{"key": "a", "values": 5}]]
SHAPES += [
    template({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{part: wanted}]}}}})
    for part in ("matchExpressions", "matchFields")
    for wanted in (*WANTED, [{"key": "a", "operator": "Gt", "values": [5]}])
]


@pytest.mark.parametrize("given", SHAPES)
def test_a_template_of_a_wrong_shape_is_refused_with_its_place(given: dict[str, Any]) -> None:
    refusal = refusal_of(given)
    assert refusal.reason == "TemplateRejected"
    assert str(refusal).startswith("spec.template.")


def test_a_template_without_a_spec_is_refused() -> None:
    assert str(refusal_of({})).startswith("spec.template.spec: it is missing; ")


def test_gpus_are_requested_once_and_other_requests_stay() -> None:
    resources = {"limits": {GPU: 2, "memory": "8Gi"}, "requests": {"cpu": "4"}}
    found = pod_of(template(resources=resources))["spec"]["containers"][0]["resources"]
    assert found == {"limits": {GPU: "2", "memory": "8Gi"}, "requests": {"cpu": "4"}}


def test_a_shared_memory_of_the_users_own_is_kept() -> None:
    spec = pod_of(template(volumeMounts=[{"name": "mine", "mountPath": "/dev/shm"}]))["spec"]
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["mine", "memtune-runner"]
    assert [volume["name"] for volume in spec["volumes"]] == ["memtune-runner"]


def test_a_run_asks_for_the_host_memory_that_an_earlier_one_lacked() -> None:
    asking = template(resources={"requests": {"memory": "1Gi"}, "limits": {"memory": "8Gi"}})
    taught = Run(RunKind.TRAIN, 2, PROBE.plan, host_request_bytes=4 * 2**30)
    found = pod_of(asking, taught)["spec"]["containers"][0]["resources"]
    assert found["requests"] == {"memory": str(4 * 2**30)}
    more = template(resources={"requests": {"memory": "6Gi"}})
    assert pod_of(more, taught)["spec"]["containers"][0]["resources"]["requests"] == {"memory": "6Gi"}


def test_a_run_is_kept_to_the_product_that_was_measured() -> None:
    pod = pod_of(template(), Run(RunKind.TRAIN, 1, PROBE.plan, gpu_product="H100"))
    assert "H100" in str(pod["spec"]["affinity"])


def test_each_pod_of_a_run_is_on_a_node_of_its_own() -> None:
    mine = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "other"}}}
    wanted = template({"affinity": {"podAntiAffinity": {REQUIRED: [mine]}}})
    for pod in manifests.pods(job(wanted, resources={"nodes": 2, "gpusPerNode": 1}), PROBE, "runner:1"):
        first, second = pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
        assert first == mine
        assert second["topologyKey"] == "kubernetes.io/hostname"
        assert second["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert "affinity" not in pod_of(template())["spec"]


def test_only_an_attempt_has_a_number_of_attempts_and_lessons() -> None:
    train = Run(RunKind.TRAIN, 2, PROBE.plan, evaluation_batch=4, sharded_save=True)
    checkpoint = {"path": "/saves/$(x)"}
    env = pod_of(template(), train, checkpoint=checkpoint)["spec"]["containers"][0]["env"]
    told = {variable["name"]: variable.get("value", "") for variable in env}
    assert told["MEMTUNE_GRACE_SECONDS"] == "25"
    assert (told["MEMTUNE_ATTEMPT"], told["MEMTUNE_EVALUATION_BATCH"], told["MEMTUNE_SHARDED_SAVE"]) == ("2", "4", "1")
    assert told["MEMTUNE_CHECKPOINT_PATH"] == "/saves/$$(x)"  # The kubelet turns it into /saves/$(x) again.
    assert told["MEMTUNE_PROBE_STEPS"] == ""
    # A probe's saves are deleted at its end, so they have a directory of their own.
    probing = pod_of(template(), PROBE, checkpoint={"path": "/saves"})["spec"]["containers"][0]["env"]
    saves = {variable["name"]: variable.get("value", "") for variable in probing}["MEMTUNE_CHECKPOINT_PATH"]
    assert saves == f"/saves/.memtune-{run_name('llama', PROBE.kind, PROBE.number)}"
    probe = environment_of(pod_of(template()))
    assert all(probe[f"MEMTUNE_{name}"] for name in ("PROBE_STEPS", "PROBE_SECONDS", "DEEPSPEED_CONFIG"))
    assert (probe["MEMTUNE_ATTEMPT"], "MEMTUNE_RESUME_FROM" in probe) == ("", False)
    with pytest.raises(ValueError, match="fresh weights"):
        Run(RunKind.PROBE, 1, PROBE.plan, resume=Checkpointed("/saves", 640))


def test_a_template_may_run_the_built_in_trainer_which_builds_the_described_model() -> None:
    trainer = template(command=["python", "-m", "memtune_runner.trainer", "--steps", "100"])
    env = pod_of(trainer, model={"architecture": ARCHITECTURE})["spec"]["containers"][0]["env"]
    [told] = [json.loads(each["value"]) for each in env if each["name"] == "MEMTUNE_ARCHITECTURE"]
    assert told["hidden_size"] == ARCHITECTURE["hiddenSize"]
    assert environment_of(pod_of(trainer, model={"factory": "train:build"}))["MEMTUNE_ARCHITECTURE"] == ""


@pytest.mark.parametrize(
    ("pod", "labels", "expected"),
    [
        ({}, {}, set()),
        ({}, {"kueue.x-k8s.io/queue-name": "q"}, {"kueue.x-k8s.io/pod-group-name"}),
        ({"schedulerName": "scheduler-plugins-scheduler"}, {}, {"scheduling.x-k8s.io/pod-group"}),
        ({"schedulerName": "volcano"}, {}, {"scheduling.k8s.io/group-name"}),
    ],
)
def test_a_group_is_named_only_for_the_queue_or_scheduler_that_was_asked_for(
    pod: dict[str, Any], labels: dict[str, str], expected: set[str]
) -> None:
    metadata = pod_of({"metadata": {"labels": labels}, **template(pod)})["metadata"]
    named = {key for key, value in (metadata["labels"] | metadata["annotations"]).items() if value == "llama-probe-0"}
    assert named == {"memtune.dev/run"} | expected


foreign = st.recursive(
    st.none() | st.booleans() | st.integers() | texts(3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts(3), inner, max_size=2),
    max_leaves=4,
)
names = ["tolerations", "nodeSelector", "dnsConfig", "securityContext", "affinity", "schedulerName", "volumes"]
parts = st.sampled_from(names)
NODE = {
    "metadata": {"name": "a", "labels": {"zone": "east"}},
    "spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]},
    "status": {"allocatable": {GPU: "8"}},
}

containers = st.sampled_from(["env", "lifecycle", "ports", "volumeMounts", "resources", "terminationMessagePath"])


@settings(max_examples=40)
@given(st.dictionaries(parts, foreign, max_size=2), st.dictionaries(containers, foreign, max_size=2))
def test_any_template_is_carried_or_refused_and_never_changed(pod: dict[str, Any], container: dict[str, Any]) -> None:
    one = job(template(pod, **container), resources={"gpusPerNode": 2, "gpuProduct": "A100"})
    before = deepcopy(one.spec.template)
    with suppress(TemplateError):
        (made,) = manifests.pods(one, PROBE, "runner:1")
        assert manifests.pods(one, PROBE, "runner:1") == [made]
        assert len(candidates([NODE], made["spec"], GPU)) <= 1
        untouched = pod.keys() - {"volumes", "affinity"}
        assert {key: made["spec"][key] for key in untouched} == {key: pod[key] for key in untouched}
    assert one.spec.template == before


def test_an_adapter_needs_a_command_that_trains_it() -> None:
    architecture = {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 256}
    refusal = refusal_of(None, model={"architecture": architecture, "peft": {"rank": 8}})
    assert refusal.reason == "TemplateRejected"
    assert "the built-in trainer trains whole models" in str(refusal)


@pytest.mark.parametrize("run", [PROBE, Run(RunKind.TRAIN, 1, Plan.parse("bf16-ddp-none-mb16x1"))])
def test_every_variable_that_may_be_referred_to_is_set_but_those_that_the_launcher_finds(run: Run) -> None:
    """Kubernetes would pass a reference to an unset variable to the command literally."""
    told = environment_of(pod_of(template(), run))
    assert set(told) == environment.REFERABLE - set(environment.FOUND_BY_LAUNCHER)
    assert told[environment.CHECKPOINT_PATH] == told[environment.EVALUATION_BATCH] == ""
    assert bool(told[environment.ATTEMPT]) == (run is not PROBE)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (
            {"args": ["--batch=$(MEMTUNE_MICROBATCH)"]},
            r"containers\[train\].args: \$\(MEMTUNE_MICROBATCH\) is not a variable of MemTune; did you mean "
            r"\$\(MEMTUNE_MICRO_BATCH\)\?",
        ),
        ({"args": ["--resume=$(MEMTUNE_RESUME)"]}, r"did you mean \$\(MEMTUNE_RESUME_FROM\)\?"),
        ({"args": ["--resume=$(MEMTUNE_RESUME_PATH)"]}, r"did you mean \$\(MEMTUNE_RESUME_FROM\)\?"),
        ({"args": ["--step=$(MEMTUNE_RESUME_STEPS)"]}, r"did you mean \$\(MEMTUNE_RESUME_STEP\)\?"),
        ({"command": ["python", "$(MEMTUNE_XYZXYZ)"]}, r"train\].command: .* docs/integrations.md lists all of them"),
        ({"env": [{"name": "A", "value": "a$(MEMTUNE_RANK_DIRECTORY)"}]}, r"train\].env\[A\]: .* is not a variable"),
        (
            {"args": ["--out", "$(MEMTUNE_CHECKPOINT_PATH)/run"]},
            r"\$\(MEMTUNE_CHECKPOINT_PATH\)/run would be /run, since the job has no spec.checkpoint; give",
        ),
        (
            {"volumeMounts": [{"name": "d", "mountPath": "/d", "subPathExpr": "$(MEMTUNE_JOBB)"}]},
            r"containers\[train\].volumeMounts\[/d\].subPathExpr: \$\(MEMTUNE_JOBB\) is not a variable of MemTune; did",
        ),
        *(
            (
                {"volumeMounts": [{"name": "d", "mountPath": "/d", "subPathExpr": f"a/$({name})"}]},
                rf"volumeMounts\[/d\].subPathExpr: \$\({name}\) is known only after the volumes are mounted; mount the",
            )
            for name in environment.FOUND_BY_LAUNCHER
        ),
        (
            {"args": ["--out", "$(MEMTUNE_CHECKPOINT_PATH)"]},
            r"\$\(MEMTUNE_CHECKPOINT_PATH\) would be empty, since the job has no spec.checkpoint; give spec.checkpoint",
        ),
        (
            {"env": [{"name": "OUT", "value": "$(MEMTUNE_CHECKPOINT_PATH)"}]},
            r"train\].env\[OUT\]: \$\(MEMTUNE_CHECKPOINT_PATH\) would be empty",
        ),
        ({"args": ["$(MEMTUNE_NVME_PATH)/a"]}, r"would be /a, since the job has no spec.resources.nvmePath"),
    ],
)
def test_a_reference_that_no_run_can_fill_in_is_refused(container: dict[str, Any], words: str) -> None:
    refusal = refusal_of(template(**container))
    assert refusal.reason == "TemplateConflict"
    assert re.search(words, str(refusal)), str(refusal)


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["$(MEMTUNE_RESUME_FROM)", "$$(MEMTUNE_OTHER)", "$(OTHER)"]},
        {"env": [{"name": "A", "value": "$(MEMTUNE_NODE_RANK)/$$(MEMTUNE_"}]},
        {"volumeMounts": [{"name": "d", "mountPath": "/d", "subPathExpr": "$(MEMTUNE_JOB)/$(OTHER)"}]},
    ],
)
def test_other_references_stay_as_they_are(container: dict[str, Any]) -> None:
    made = pod_of(template(**container))["spec"]["containers"][0]
    assert made.get("args") == container.get("args")
    assert [each for each in made["env"] if each["name"] == "A"] == container.get("env", [])
    assert [each for each in made["volumeMounts"] if "subPathExpr" in each] == container.get("volumeMounts", [])


def test_other_containers_cannot_refer_to_runner_variables() -> None:
    fetch = {"name": "fetch", "image": "fetch:1", "command": ["mkdir", "$(MEMTUNE_CHECKPOINT_PATH)"]}
    refusal = str(refusal_of(template({"initContainers": [fetch]})))
    assert "initContainers[fetch].command: $(MEMTUNE_CHECKPOINT_PATH) is set in the container that trains al" in refusal
    own = [{"name": "MEMTUNE_CHECKPOINT_PATH", "value": "/mine"}]
    assert pod_of(template({"initContainers": [{**fetch, "env": own}]}))
    assert pod_of(template({"initContainers": [{**fetch, "envFrom": [{"configMapRef": {"name": "a"}}]}]}))
