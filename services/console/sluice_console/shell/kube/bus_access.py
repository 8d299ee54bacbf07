"""
A way to the bus of a cluster through `kubectl`: a token of a ServiceAccount, and a port-forward to the broker.

So RBAC decides who may: to create tokens of a bus user's account is to be that user. kubectl supports every way to log
in.
"""

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
CA = "sluice-bus-authorities"
AUDIENCE, LASTS = "sluice-bus", "12h"
"""Of a token. A command that runs longer is disconnected then."""
ASK_S = 30.0
"""For one question to the API server, a login included."""
FORWARD_S = 30.0
"""Until a port-forward listens."""
NO_CONTEXT = (
    "no cluster is chosen: name a kubeconfig by --kubeconfig or KUBECONFIG, and one of its contexts by --context"
)
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
        """The context, and the namespace where its commands look. Raises ClusterError where none is chosen."""
        try:
            view = self._json("config", "view", "--minify", "--output=json")
        except ClusterError as error:
            if "current-context" not in str(error):
                raise
            raise ClusterError(NO_CONTEXT) from error
        contexts: list[dict[str, Any]] = view.get("contexts") or [{}]
        namespace = (contexts[0].get("context") or {}).get("namespace")
        return Target(str(contexts[0].get("name") or "of this pod"), str(namespace or "default"))

    def authorities(self) -> str:
        """Whom to trust as broker, PEM."""
        found = self._json("get", "configmap", CA, f"--namespace={self._system}", "--output=json")
        value = (found.get("data") or {}).get("ca.crt")
        if not isinstance(value, str) or not value:
            raise ClusterError(f"the configmap {CA} in {self._system} has no ca.crt: is Sluice installed there?")
        return value

    def token(self, account: str) -> str:
        """A new token for the bus."""
        options = (f"--namespace={self._system}", f"--audience={AUDIENCE}", f"--duration={LASTS}")
        return self._output("create", "token", account, *options).strip()

    def _json(self, *words: str) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self._output(*words))
        except ValueError as error:
            raise ClusterError(f"kubectl {words[0]} printed no JSON: {error}") from error
        return document

    def _output(self, *words: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - kubectl is from PATH, which is the person's
                [*self.command, *words], capture_output=True, text=True, timeout=ASK_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"kubectl {words[0]}: {error}") from error
        if done.returncode != 0:
            raise ClusterError(" ".join(done.stderr.split())[:_ERROR_MAX] or f"kubectl {words[0]} failed")
        return done.stdout

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
    """The environment in which this process's commands reach the bus as `user`. Raises ClusterError.

    Credentials are in files of this user alone, which are removed at the end."""
    token, ca = kubectl.token(f"sluice-{user}"), kubectl.authorities()
    with TemporaryDirectory(prefix="kubectl-sluice-") as folder, kubectl.forwarded() as port:
        files = {"token": token.encode(), "ca.crt": ca.encode()}
        for name, content in files.items():
            descriptor = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        yield {
            "SLUICE_NATS_URL": f"tls://127.0.0.1:{port}",
            "SLUICE_NATS_USER": user,
            "SLUICE_NATS_TOKEN_FILE": f"{folder}/token",
            "SLUICE_NATS_CA_FILE": f"{folder}/ca.crt",
            "SLUICE_NATS_SERVER_NAME": f"{SERVICE}.{system_namespace}.svc",
        }
