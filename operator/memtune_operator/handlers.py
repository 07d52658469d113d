"""The kopf application: event handlers, leader election and the startup and shutdown of the operator."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from memtune.api import GROUP, PLURAL, VERSION
from memtune_operator import metrics
from memtune_operator.backend import Key
from memtune_operator.kubernetes.backend import KubernetesBackend
from memtune_operator.kubernetes.client import Client, connect
from memtune_operator.kubernetes.lease import lead
from memtune_operator.reconciler import Reconciler
from memtune_operator.search import optuna_search
from memtune_operator.settings import Settings

_log = logging.getLogger("memtune")


async def run(settings: Settings) -> None:
    """Run until stopped; with leader election, only while the Lease is held."""
    counters = metrics.Metrics(time.time())
    counters.serve(settings.metrics_port)
    async with connect(counters.request) as cluster:
        if not settings.lease_namespace:
            await _work(cluster, settings, counters)
            return
        if await lead(cluster, settings, lambda: _work(cluster, settings, counters)):
            return
        # Another replica may lead from now on, so nothing that this process has in progress may continue.
        _log.error("the lease %s/%s is lost; this process ends", settings.lease_namespace, settings.lease_name)
        os._exit(1)


async def _work(cluster: Client, settings: Settings, counters: metrics.Metrics) -> None:
    backend = KubernetesBackend(cluster, settings)
    reconciler = Reconciler(backend, optuna_search.propose, time.time, counters)
    counters.leads(lambda: reconciler.pending)
    watches = asyncio.create_task(backend.follow(reconciler.wake))

    async def stop() -> None:
        watches.cancel()
        await reconciler.stop()

    operator = asyncio.create_task(_listen(_registry(reconciler, stop), settings))
    try:
        done, _ = await asyncio.wait({operator, watches}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            # On shutdown kopf cancels every other task.
            if not task.cancelled():
                task.result()
    finally:
        operator.cancel()
        await stop()


async def _listen(registry: kopf.OperatorRegistry, settings: Settings) -> None:
    options = kopf.OperatorSettings()
    # Log lines are not posted as events: events come from decisions.
    options.posting.enabled = False
    # Scanning for new namespaces and kinds needs cluster-wide permissions.
    options.scanning.disabled = bool(settings.namespaces)
    await kopf.operator(
        registry=registry,
        settings=options,
        namespaces=settings.namespaces,
        clusterwide=not settings.namespaces,
        standalone=True,
        # Otherwise kopf looks up the user's name, and the user in the image has none.
        identity=settings.identity,  # type: ignore[arg-type]  # kopf's type for it is private
        liveness_endpoint=f"http://0.0.0.0:{settings.liveness_port}/healthz",
    )


def _registry(reconciler: Reconciler, stop: Callable[[], Awaitable[None]]) -> kopf.OperatorRegistry:
    """The handlers that kopf calls. Only an event handler, because it adds neither a finalizer nor annotations to a
    job."""
    registry = kopf.OperatorRegistry()
    for login in (kopf.login_with_service_account, kopf.login_with_kubeconfig):
        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.IGNORED)(login)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def changed(namespace: str | None, name: str, **_: Any) -> None:
        reconciler.wake(Key(namespace or "", name))

    @kopf.on.cleanup(registry=registry)
    async def stopping(**_: Any) -> None:
        # kopf waits 5 s for any other task when it ends.
        await stop()

    return registry
