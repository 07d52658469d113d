"""The Kubernetes backend, by the contract of every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from backend_contract import BackendContract
from kubernetes.aio import client, config
from operator_process import Jobs
from pods import Cluster

from memtune.api import KIND
from memtune_operator.backend import Backend
from memtune_operator.kubernetes.backend import KubernetesBackend
from memtune_operator.kubernetes.client import Client as Api
from memtune_operator.pods.security_policy import Policy
from memtune_operator.settings import Settings


class Namespace:
    """A namespace of the cluster."""

    def __init__(self, kubeconfig: str, cluster: Cluster, namespace: str, runner_image: str) -> None:
        self.namespace = namespace
        self._kubeconfig, self._cluster = kubeconfig, cluster
        self._jobs = Jobs(cluster.connection, namespace)
        policy = Policy(host_path=False, host_network=False, privileged=False, service_accounts=("default",))
        self._settings = Settings(runner_image, policy, identity="test", namespaces=(namespace,))

    def apply(self, job: dict[str, Any]) -> None:
        self._jobs.apply(job)

    def heard(self) -> list[str]:
        events = self._cluster.core.list_namespaced_event(self.namespace).items
        return [event.message for event in events if event.involved_object.kind == KIND]

    @asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        options = client.Configuration()
        await config.load_kube_config(self._kubeconfig, client_configuration=options)
        async with client.ApiClient(options) as connection:
            backend = KubernetesBackend(Api(connection), self._settings)
            watches = asyncio.create_task(backend.follow(lambda _: None))
            try:
                yield backend
            finally:
                watches.cancel()
                await asyncio.gather(watches, return_exceptions=True)
        await asyncio.sleep(0.25)  # a connection with TLS is closed by the loop, a moment later


class TestKubernetesBackend(BackendContract):
    @pytest.fixture
    def world(
        self,
        kubeconfig: str,
        cluster: Cluster,
        namespace: str,
        images: dict[str, str],
        crd: None,  # it must be there
    ) -> Namespace:
        return Namespace(kubeconfig, cluster, namespace, images["runner"])
