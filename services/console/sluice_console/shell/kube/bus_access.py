"""
A way to the bus of a cluster through `kubectl`: its credential from a Secret, and a port-forward to the broker.

So RBAC decides who may: to read the Secret of a bus user is to be that user. kubectl supports every way to log in.
"""

import base64
import json
import os
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from sluice_console.shell.errors import CommandError

SYSTEM_NAMESPACE = "sluice-system"
SERVICE, PORT = "sluice-nats", 4222
CA = "sluice-bus-ca"
ASK_S = 30.0
"""For one question to the API server, a login included."""
FORWARD_S = 30.0
"""Until a port-forward listens."""
_ERROR_MAX = 400
_LISTENS = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")


class ClusterError(CommandError):
    """The cluster cannot be reached, or does not let this person in. One sentence with what helps."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Which cluster: as kubectl's options of these names, empty for its own choice."""

    kubeconfig: str = ""
    context: str = ""
    system_namespace: str = SYSTEM_NAMESPACE


@dataclass(frozen=True, slots=True)
class Target:
    """What kubectl's configuration names."""

    context: str
    namespace: str


class KubectlRunner:
    """`kubectl` with a person's options."""

    def __init__(self, options: ClusterOptions) -> None:
        """Raises ClusterError where there is no kubectl."""
        found = shutil.which("kubectl")
        if found is None:
            raise ClusterError("there is no kubectl on PATH; the cluster is reached through it")
        named = (("--kubeconfig", options.kubeconfig), ("--context", options.context))
        self.command = (found, *(f"{option}={value}" for option, value in named if value))
        self._system = options.system_namespace

    def target(self) -> Target:
        """The context, and the namespace where its commands look."""
        view = self._json("config", "view", "--minify", "--output=json")
        contexts: list[dict[str, Any]] = view.get("contexts") or [{}]
        namespace = (contexts[0].get("context") or {}).get("namespace")
        return Target(str(contexts[0].get("name") or "of this pod"), str(namespace or "default"))

    def data_of(self, kind: str, name: str, key: str) -> str:
        """One entry of a Secret or ConfigMap of Sluice, as stored."""
        found = self._json("get", kind, name, f"--namespace={self._system}", "--output=json")
        value = (found.get("data") or {}).get(key)
        if not isinstance(value, str) or not value:
            raise ClusterError(f"the {kind} {name} in {self._system} has no {key}: is Sluice installed there?")
        return value

    def _json(self, *words: str) -> dict[str, Any]:
        try:
            done = subprocess.run(  # noqa: S603 - kubectl is from PATH, which is the person's
                [*self.command, *words], capture_output=True, text=True, timeout=ASK_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"kubectl {words[0]}: {error}") from error
        if done.returncode != 0:
            raise ClusterError(" ".join(done.stderr.split())[:_ERROR_MAX] or f"kubectl {words[0]} failed")
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            raise ClusterError(f"kubectl {words[0]} printed no JSON: {error}") from error
        return document

    @contextmanager
    def forwarded(self) -> Iterator[int]:
        """A port of the loopback that leads to the broker. Raises ClusterError."""
        words = ("port-forward", f"--namespace={self._system}", "--address=127.0.0.1", f"service/{SERVICE}", f":{PORT}")
        process = subprocess.Popen(  # noqa: S603 - as above
            [*self.command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for us: the way to the broker outlives what we close
        )
        try:
            yield _port_of(process)
        finally:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port_of(process: subprocess.Popen[str]) -> int:
    """The port that kubectl prints. It prints a line for each connection, which is read on and dropped."""
    heard: queue.Queue[str] = queue.Queue()

    def read(lines: IO[str]) -> None:
        for line in lines:
            if heard.qsize() < 100:  # the rest is dropped
                heard.put(line)
        heard.put("")

    for lines in (process.stdout, process.stderr):
        assert lines is not None
        threading.Thread(target=read, args=(lines,), daemon=True).start()
    told, ends = [], 0
    try:
        while ends < 2:
            line = heard.get(timeout=FORWARD_S)
            found = _LISTENS.search(line)
            if found is not None:
                return int(found[1])
            ends += not line
            told.append(line.strip())
    except queue.Empty:
        raise ClusterError(f"no way to the broker within {FORWARD_S:g} s: {' '.join(told)[:_ERROR_MAX]}") from None
    why = " ".join(filter(None, told))[:_ERROR_MAX]
    raise ClusterError(f"no way to the broker (service/{SERVICE}): {why or 'kubectl port-forward ended'}")


@contextmanager
def bus_of_cluster(kubectl: KubectlRunner, system_namespace: str, user: str) -> Iterator[dict[str, str]]:
    """
    The environment in which this process's commands reach the bus as `user`. Raises ClusterError.

    Credentials are in files of this user alone, which are removed at the end.
    """
    password = base64.b64decode(kubectl.data_of("secret", f"sluice-bus-{user}", "password"))
    ca = kubectl.data_of("configmap", CA, "ca.crt")
    with TemporaryDirectory(prefix="kubectl-sluice-") as folder, kubectl.forwarded() as port:
        files = {"password": password, "ca.crt": ca.encode()}
        for name, content in files.items():
            descriptor = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        yield {
            "SLUICE_NATS_URL": f"tls://127.0.0.1:{port}",
            "SLUICE_NATS_USER": user,
            "SLUICE_NATS_PASSWORD_FILE": f"{folder}/password",
            "SLUICE_NATS_CA_FILE": f"{folder}/ca.crt",
            "SLUICE_NATS_SERVER_NAME": f"{SERVICE}.{system_namespace}.svc",
        }
