"""Sluice by its chart, as an administrator installs and removes it."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cluster import product, remains
from cluster.harness.binaries import BuildError, NotFetchedError, build_extra
from cluster.harness.cluster import Cluster
from cluster.objects import free_volumes, listed

NAMESPACE = "sluice-system"
CHART = product.REPOSITORY / "deploy/helm/sluice"
HELM_S = 400


class Helm:
    """Helm as the administrator of a cluster."""

    def __init__(self, cluster: Cluster, program: str) -> None:
        """`program`: its file."""
        self.cluster, self._program = cluster, program

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Its end, with stderr in stdout."""
        return subprocess.run(
            [self._program, f"--kubeconfig={self.cluster.kubeconfig}", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HELM_S,
            check=False,
        )

    def done(self, *words: str) -> str:
        """What it says; the test fails where it fails."""
        ended = self.run(*words)
        if ended.returncode:
            pytest.fail(f"helm {' '.join(words)}:\n{ended.stdout}\n{product.state_of_pods(self.cluster)}")
        return ended.stdout


@contextmanager
def emptied(cluster: Cluster) -> Iterator[Helm]:
    """
    A Helm for a cluster without Sluice; afterwards it is as other tests expect it: by kustomize where it was.

    What changes machines does so within, and so no pod of the later installation is on a machine that was lent.
    Skips the tests where there is no Helm.
    """
    try:
        program = build_extra("helm").executables["helm"]
    except NotFetchedError as error:
        pytest.skip(str(error))
    except BuildError as error:
        pytest.skip(f"there is no Helm: {error}")
    was_installed = bool(cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"))
    if was_installed:
        _forget_volumes(cluster, lambda: product.uninstall(cluster))
    else:
        product.bring_images(cluster)
        remains.keep(cluster)
    try:
        yield Helm(cluster, str(program))
    finally:
        if was_installed:
            product.install(cluster, components=["resource-claims"])


@contextmanager
def installed(helm: Helm, *options: str) -> Iterator[None]:
    """Sluice by Helm with these options, in an emptied cluster."""
    try:
        said = helm.done("install", "sluice", str(CHART), *options, "--create-namespace", "--wait", "--timeout=180s")
        assert f" is in {NAMESPACE}, on simulated GPUs" in said
        product.wait(helm.cluster)
        yield
    finally:
        helm.run("uninstall", "sluice", f"--namespace={NAMESPACE}", "--no-hooks", "--ignore-not-found")
        namespaces = ("delete", "namespace", NAMESPACE, "sluice-nodes", "--ignore-not-found", "--timeout=120s")
        _forget_volumes(helm.cluster, lambda: helm.cluster.kubectl(*namespaces, timeout_s=130))


def _forget_volumes(cluster: Cluster, remove: Callable[[], object]) -> None:
    """Remove, and offer the volumes again that it leaves."""
    claims = listed(cluster, NAMESPACE, "persistentvolumeclaims")
    remove()
    free_volumes(cluster, [name for each in claims if (name := each["spec"].get("volumeName"))])
