"""Eight sets of chart values that together use every value."""

from __future__ import annotations

from typing import Any

DIGEST = "sha256:" + "0" * 64
SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
MONITORED: dict[str, Any] = {
    "serviceMonitor": {"create": "always", "interval": "1m30s", "labels": {"release": "prometheus"}},
    "podMonitor": {"create": "always", "interval": "5s", "labels": {"release": "prometheus"}},
    "prometheusRule": {
        "create": "always",
        "labels": {"release": "prometheus"},
        "runbookBaseUrl": "https://wiki.example/memtune/",
    },
    "dashboards": {"labels": {"grafana_dashboard": "1", "team": "platform"}, "annotations": {"grafana_folder": "ML"}},
}
PLACED: dict[str, Any] = {
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}},
    "nodeSelector": {"pool": "system"},
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
            ]
        }
    },
    "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "system-cluster-critical",
}

VALUE_SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaces": {
        "rbac": {"scope": "namespaces", "namespaces": ["team-a", "team-b"], "readNodes": False},
        "policy": {"hostPath": False, "podSecurity": "restricted", "serviceAccounts": ["trainer", "default"]},
        "gangs": ["volcano", "coscheduling", "jobset"],
        "gpuHourPrices": {"NVIDIA-H100-80GB-HBM3": 2.5, "NVIDIA-L4": 1, "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb": 1e-05},
    },
    "own namespace": {
        "rbac": {"scope": "namespaces", "readNodes": False, "aggregateRoles": False},
        "crd": {"install": False},
        "metrics": {"service": {"enabled": False}},
        "test": {"mode": "Probe", "timeoutSeconds": 600},
    },
    "replicas": {
        "replicas": 3,
        "podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"},
        "topologySpreadConstraints": [{**SPREAD, "labelSelector": {"matchLabels": {"app": "x"}}}],
        **PLACED,
    },
    "monitored": {"metrics": MONITORED, "labels": {"team": "ml"}},
    "fenced": {
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "apiServer": {"cidrs": ["10.0.0.1/32"], "ports": [6443]},
        },
        "policy": {
            "allowedNamespaces": ["team-a", "team-b"],
            "deniedNamespaces": ["kube-system"],
            "hostNetwork": True,
            "privileged": True,
            "serviceAccounts": ["*"],
        },
        "test": {"namespace": "team-b"},
    },
    "nothing of its own": {
        "serviceAccount": {"create": False, "name": "given"},
        "rbac": {"create": False},
        "crd": {"install": False},
        "metrics": {
            "serviceMonitor": {"create": "never"},
            "podMonitor": {"create": "never"},
            "prometheusRule": {"create": "never"},
            "dashboards": {"enabled": False},
        },
    },
    "everything": {
        "nameOverride": "tuner",
        "fullnameOverride": "memory-tuner",
        "image": {"repository": "registry.example:5000/memtune-operator", "digest": DIGEST, "pullPolicy": "Always"},
        "runnerImage": {"repository": "registry.example/memtune-runner", "tag": "nightly-cu130"},
        "imagePullSecrets": [{"name": "registry"}],
        "replicas": 2,
        "serviceAccount": {"name": "tuner", "annotations": {"note": "for the operator"}},
        "metrics": {**MONITORED, "port": 9999, "service": {"annotations": {"note": "scrape me"}}},
        "healthPort": 8081,
        "networkPolicy": {
            "enabled": True,
            "extraEgress": [
                {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 3128, "protocol": "TCP"}]}
            ],
        },
        "podDisruptionBudget": {"enabled": True},
        **PLACED,
        "extraEnv": [
            {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        ],
        "labels": {"team": "ml"},
        "podLabels": {"sidecar.example/inject": "false"},
        "podAnnotations": {"note": "annotated"},
    },
}
