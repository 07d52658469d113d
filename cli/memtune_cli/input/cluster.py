"""Connects to the cluster of a kubeconfig, chosen as by kubectl, and turns API errors into one sentence."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memtune.api import API_VERSION, KIND
from memtune_cli.errors import InputError
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.pods.kinds import Manifest

if TYPE_CHECKING:
    from kubernetes.aio import client

    from memtune_operator.kubernetes.client import Client

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class JobAddress:
    """A job and its cluster."""

    cluster: Client
    server: str
    namespace: str
    name: str

    async def read(self) -> Manifest:
        """Read the job."""
        try:
            return await self.cluster.read(API_VERSION, KIND, self.namespace, self.name)
        except ApiError as error:
            if error.kind is ErrorKind.ABSENT:
                raise InputError(await self._absent(error)) from None
            raise

    async def _absent(self, error: ApiError) -> str:
        if error.object_name != self.name:
            return f"{self.server} knows no MemoryTunedJob: MemTune is not installed there; install its chart first"
        try:
            await self.cluster.read("v1", "Namespace", "", self.namespace)
        except ApiError as other:
            # Without permission to read namespaces, report only the job.
            if other.kind is ErrorKind.ABSENT:
                return f"there is no namespace {self.namespace} on {self.server}; give another -n"
        absent = f"there is no MemoryTunedJob {self.name} in namespace {self.namespace}"
        return f"{absent}; `kubectl get mtj -A` lists those that there are{job_here(self.name)}"


def job_here(name: str) -> str:
    """The hint for a user who may mean a `memtune run` job in this directory."""
    for directory in (Path(name), Path(".memtune") / name):
        if name and (directory / "job.json").is_file():
            return f"; the job of memtune run that is here is --state {directory} (status, report, logs)"
    return ""


@asynccontextmanager
async def address(arguments: argparse.Namespace) -> AsyncIterator[JobAddress]:
    """The job that a command names; API errors become one sentence."""
    for what, name in (("NAME", arguments.name), ("-n", arguments.namespace)):
        if name is not None and not _NAME.fullmatch(name):
            problem = f"{what}: {name!r} cannot be a name; use small letters, digits, '-' and '.'"
            raise InputError(problem + job_here(name))
    from memtune_operator.kubernetes.client import Client

    try:
        api, namespace, renewal = await _connect(arguments)
    except InputError as error:
        raise InputError(f"{error}{job_here(arguments.name)}") from None
    server = api.configuration.host
    cluster = Client(api)
    try:
        yield JobAddress(cluster, server, arguments.namespace or namespace, arguments.name)
    except ApiError as error:
        raise InputError(sentence(error, server)) from None
    finally:
        renewal.cancel()
        await api.close()


def sentence(error: ApiError, server: str) -> str:
    """An API error in words, and what to do."""
    if error.status is None:
        return f"no answer from {server}: {error.message}; is the cluster up, and this the right --context?"
    if error.status == 401:
        return f"{server} does not know who you are; log in again, or give another --context"
    if error.status == 403:
        return f"{error.message}; ask for the role view, or edit, in that namespace"
    return f"{server} refused: {error.message}"


async def _connect(arguments: argparse.Namespace) -> tuple[client.ApiClient, str, asyncio.Future[None]]:
    """Connect; return the client, the default namespace and the task that refreshes the credentials."""
    from kubernetes.aio import client, config

    configuration = client.Configuration()
    chosen = arguments.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(file).expanduser() for file in chosen.split(os.pathsep) if file]
    present = os.pathsep.join(str(file) for file in files if file.exists())
    is_given = arguments.kubeconfig or arguments.context or os.environ.get("KUBECONFIG")
    if not present and not is_given and _NAMESPACE_FILE.exists():
        # Inside a pod, like kubectl.
        with _readable("this pod's ServiceAccount"):
            config.load_incluster_config(configuration)
        nothing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return client.ApiClient(configuration), _NAMESPACE_FILE.read_text().strip(), nothing
    if not present:
        raise InputError(f"{chosen}: there is no such kubeconfig; give --kubeconfig FILE, or set KUBECONFIG")
    with _readable(chosen):
        # Refreshed tokens are not written back to the kubeconfig.
        loader = await config.load_kube_config(present, arguments.context, configuration, persist_config=False)
        namespace = loader.current_context["context"].get("namespace") or "default"
        renewal = asyncio.ensure_future(config.refresh_token(loader, configuration))
        return client.ApiClient(configuration), namespace, renewal


@contextmanager
def _readable(file: str) -> Iterator[None]:
    """Turn the client's exception for an invalid kubeconfig into a sentence."""
    from kubernetes.aio import config
    from yaml import YAMLError

    try:
        yield
    except config.ConfigException as error:
        problem = str(error).removeprefix("Invalid kube-config file. ")
        raise InputError(f"{file}: this is no way to a cluster: {problem}; correct it, or --context") from None
    except YAMLError as error:
        raise InputError(f"{file}: this is not YAML: {' '.join(str(error).split())}") from None
    except (TypeError, AttributeError):
        raise InputError(f"{file}: this is no kubeconfig, though it is YAML; give another") from None
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{file}: this is no way to a cluster: {error}; correct it, or give another") from None
