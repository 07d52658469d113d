"""Discovery of attempts' metrics, with and without the Prometheus Operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fast_yaml
import yaml
from chart_values import VALUE_SETS
from helm_chart import ROOT, objects, only
from promtool import check_config

from memtune.wire.run import RunKind
from memtune_operator.pods import names

PLAIN = ROOT / "docs" / "prometheus.yaml"
SCRAPED: dict[str, dict[str, Any]] = {
    each["job_name"]: each for each in fast_yaml.load(PLAIN.read_text())["scrape_configs"]
}


def discovered(label: str) -> str:
    """Return Prometheus's name for a label of a discovered pod."""
    return "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)


def monitor() -> dict[str, Any]:
    spec: dict[str, Any] = only(objects(VALUE_SETS["monitored"]), "PodMonitor")["spec"]
    return spec


def relabelings() -> list[dict[str, Any]]:
    """Return the PodMonitor's relabelings as a plain Prometheus configuration spells them."""
    (endpoint,) = monitor()["podMetricsEndpoints"]
    snake = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return [{snake.get(key, key): value for key, value in each.items()} for each in endpoint["relabelings"]]


def test_attempts_are_found_by_the_labels_of_their_pods() -> None:
    spec = monitor()
    assert spec["selector"] == {"matchLabels": {names.LABEL_RUN_KIND: str(RunKind.TRAIN)}}
    assert spec["podMetricsEndpoints"][0]["port"] == names.METRICS_PORT_NAME
    sources = {each["target_label"]: each["source_labels"] for each in relabelings() if "regex" not in each}
    assert sources == {
        "mtj_namespace": ["__meta_kubernetes_namespace"],
        "mtj": [discovered(names.LABEL_JOB)],
        "run": [discovered(names.LABEL_RUN)],
    }


def test_a_long_name_of_a_job_comes_from_the_owner_of_its_pods() -> None:
    (owner,) = [each for each in relabelings() if "regex" in each]
    assert owner["target_label"] == "mtj"
    assert re.fullmatch(owner["regex"], "MemoryTunedJob;llama")
    assert not re.fullmatch(owner["regex"], "Job;llama-train-1")


def test_a_prometheus_without_its_operator_adds_the_same_labels() -> None:
    config = SCRAPED["memtune-runs"]["relabel_configs"]
    assert config[-len(relabelings()) :] == relabelings()
    keep = config[0]
    assert keep["source_labels"][0] == discovered(names.LABEL_RUN_KIND)
    assert keep["regex"] == f"{RunKind.TRAIN};{names.METRICS_PORT_NAME}"


def test_a_prometheus_without_its_operator_finds_the_operators_pods() -> None:
    template = only(objects({}), "Deployment")["spec"]["template"]
    keep = SCRAPED["memtune-operator"]["relabel_configs"][0]
    labels = {discovered(label): value for label, value in template["metadata"]["labels"].items()}
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    found = [";".join([*(labels[each] for each in keep["source_labels"][:-1]), port]) for port in ports]
    assert [each for each in found if re.fullmatch(keep["regex"], each)] == ["memtune;operator;metrics"]


def test_prometheus_reads_the_configuration(tmp_path: Path) -> None:
    """Debian builds Prometheus without Kubernetes discovery, so that part is removed for promtool."""
    config = fast_yaml.load(PLAIN.read_text())
    for each in config["scrape_configs"]:
        assert each.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    (rules,) = config["rule_files"]
    config["rule_files"] = [str((PLAIN.parent / rules).resolve(strict=True))]
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    check_config(file)
