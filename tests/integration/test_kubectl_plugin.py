"""`kubectl sluice` with a stand-in for kubectl, at a broker whose certificate is for its name in a cluster."""

import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from factories.broker.bus_rigs import say
from factories.broker.nats_server import User
from factories.broker.tls_broker import TlsBroker
from factories.credentials import Authority
from factories.processes import finished

from sluice.contracts.bus import subjects
from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.contracts.ids import RequestId, SourceName
from sluice.contracts.messages import AllocationRequested, Claim, QuotaSet
from sluice.runtime.nats.credential_files import credentials_from_settings
from sluice.runtime.nats.jetstream_bus import NatsBus
from sluice.runtime.nats_server.free_ports import free_ports
from sluice.runtime.nats_server.users import authorization
from sluice.runtime.settings import CommonSettings

NAME = "sluice-nats.gpu-system.svc"
KUBECTL = """#!/bin/sh
echo "$*" >> {folder}/asked
for word; do case $word in --namespace=*) namespace=$word ;; esac; done
[ "$1" = --context=lab ] && shift
case "$1 $2 $3" in
"config view"*)
  [ -e {folder}/nowhere ] && {{ echo "error: current-context must exist in order to minify" >&2; exit 1; }}
  echo '{{"contexts": [{{"name": "lab", "context": {{"namespace": "red"}}}}]}}' ;;
"create token sluice-operator")
  echo 'error: failed to create token: serviceaccounts "sluice-operator" is forbidden' >&2; exit 1 ;;
"create token sluice-console")
  case "$*" in *--audience=sluice-bus*) echo password-of-console ;; esac ;;
"get configmap sluice-bus-authorities") cat {folder}/ca ;;
"port-forward"*)
  [ -e {folder}/broken ] && {{ echo "error: no pod is running" >&2; exit 1; }}
  echo $$ > {folder}/forward
  echo "Forwarding from 127.0.0.1:{port} -> 4222"; exec sleep 600 ;;
esac
"""


class PasswordBroker(TlsBroker):
    """One that knows its users by passwords, as in a cluster."""

    def config(self) -> str:
        users = [User(permissions_of(role), f"password-of-{role.value}") for role in Role if role != Role.NODE_AGENT]
        pem = self.folder / "broker.pem"
        lines = [
            f'listen: "127.0.0.1:{self.port}"',
            f'jetstream {{ store_dir: "{self.folder}/store" }}',
            f'tls {{ cert_file: "{pem}", key_file: "{pem}" }}',
            *authorization(users),
        ]
        return "\n".join(lines) + "\n"


@dataclass
class Desk:
    """A person's machine: `kubectl` on PATH, and what was asked of it."""

    folder: Path

    async def sluice(self, *words: str) -> tuple[int, str, str]:
        """Type `kubectl sluice ...`; the exit code, standard output and standard error."""
        environment = {
            "PATH": f"{self.folder}:{os.defpath}",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "SLUICE_NATS_URL": "nats://another.example:4222",
        }
        return await finished(sys.executable, "-m", "sluice_console.kubectl_plugin", *words, environment=environment)

    def nothing_is_left(self) -> bool:
        pid = (self.folder / "forward").read_text().strip() if (self.folder / "forward").exists() else ""
        return not any((self.folder / "tmp").iterdir()) and not (pid and Path(f"/proc/{pid}").exists())


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    bus_ca = Authority(tmp_path / "bus", "Sluice bus")
    broker = PasswordBroker(tmp_path, free_ports(1)[0], bus_ca, Authority(tmp_path / "users", "Sluice users"))
    broker.shows(bus_ca, NAME)
    (tmp_path / "ca").write_text(json.dumps({"data": {"ca.crt": bus_ca.pair.certificate.decode()}}))
    (tmp_path / "kubectl").write_text(KUBECTL.format(folder=tmp_path, port=broker.port))
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "ca.crt").write_bytes(bus_ca.pair.certificate)
    try:
        await broker.start()
        for role in (Role.ADMINISTRATOR, Role.OPERATOR):
            (tmp_path / "password").write_text(f"password-of-{role.value}")
            (tmp_path / "password").chmod(0o600)
            settings = CommonSettings(
                nats_user=role.value,
                nats_password_file=tmp_path / "password",
                nats_ca_file=tmp_path / "ca.crt",
                nats_server_name=NAME,
            )
            url = f"tls://127.0.0.1:{broker.port}"
            bus = await NatsBus.connect(url, name="test", credentials=credentials_from_settings(settings), within_s=10)
            if role is Role.ADMINISTRATOR:
                await bus.ensure_streams()
            else:
                await _fill(bus)
            await bus.close()
        yield Desk(tmp_path)
    finally:
        await broker.stop()


async def _fill(bus: NatsBus) -> None:
    for namespace in ("red", "blue"):
        request = RequestId(f"{namespace}-1")
        claims = (Claim(container="main", modes=("exclusive",), profile="1g.5gb"),)
        pod = {"namespace": namespace, "name": "train", "origin": "", "owner": "u"}
        message = AllocationRequested(claims=claims, source=SourceName("s"), revision=1, **pod)
        await say(bus, subjects.request(request), 0, message)
    await say(bus, subjects.quota("red"), 0, QuotaSet(namespace="red", priority_max=5))


async def test_the_pods_of_the_contexts_namespace_are_shown_and_nothing_is_left(desk: Desk):
    """It needed a password file, /etc/hosts and a port-forward by hand. Variables of another system do not count."""
    code, out, err = await desk.sluice("pods", "--waiting", "--system-namespace=gpu-system")
    assert (code, err) == (0, "context lab, Sluice in gpu-system, namespace red\n"), err
    head, row = out.splitlines()
    assert head.split() == ["POD", "STATE", "AGE", "WAITED", "NODE", "SLICE", "WHAT"]
    assert row.split()[:2] == ["red/train", "requested"]
    assert row.split()[2].endswith("s")
    assert desk.nothing_is_left()


@pytest.mark.parametrize(
    ("words", "where", "pods"),
    [
        (["-A"], "all namespaces", ["blue/train", "red/train"]),
        (["-n", "blue"], "namespace blue", ["blue/train"]),
        (["-n=blue", "--node", "gpu-1"], "namespace blue", []),
        (["-n", "green"], "namespace green", []),
        (["-n", "re*", "--", "-node:gpu-1"], "namespace re*", ["red/train"]),
    ],
)
async def test_other_namespaces_and_nodes_are_named_as_kubectl_does(desk: Desk, words, where, pods):
    """A person types what works everywhere else."""
    code, out, err = await desk.sluice("--context", "lab", "--system-namespace", "gpu-system", "pods", *words)
    assert (code, err) == (0, f"context lab, Sluice in gpu-system, {where}\n"), err
    assert [line.split()[0] for line in out.splitlines()[1:]] == pods
    assert pods or out == "no such pod asks for a slice\n"


async def test_what_rbac_does_not_give_is_not_had(desk: Desk):
    """To read a Secret is to be that user: the sentence is the API server's, and nothing was tried."""
    code, out, err = await desk.sluice("cordon", "gpu-1", "--system-namespace", "gpu-system")
    assert (code, out) == (1, "")
    assert 'serviceaccounts "sluice-operator" is forbidden' in err
    code, out, _ = await desk.sluice("quota", "list", "--system-namespace", "gpu-system")
    assert code == 0
    assert "up to 5" in out
    assert desk.nothing_is_left()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("broken", "no way to the broker (service/sluice-nats): error: no pod is running"),
        ("nowhere", "no cluster is chosen: name a kubeconfig by --kubeconfig or KUBECONFIG"),
    ],
)
async def test_a_way_that_cannot_be_opened_is_a_sentence(desk: Desk, trouble, said):
    """A broker's pod that does not run would be a command that hangs; `minify` says nothing to a person."""
    (desk.folder / trouble).touch()
    code, out, err = await desk.sluice("nodes", "--system-namespace", "gpu-system")
    assert (code, out) == (1, "")
    assert err.startswith(f"kubectl sluice: {said}")
    assert desk.nothing_is_left()


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [([], 0, "-n NAME another"), (["pods", "--help"], 0, "--waiting"), (["run"], 2, "'run' must be one of gpus, ")],
)
async def test_help_needs_no_cluster(desk: Desk, words, code, shown):
    """A person looks before having rights."""
    (desk.folder / "kubectl").unlink()
    found, out, err = await desk.sluice(*words)
    assert found == code
    assert shown in out + err
