"""gRPC with certificates: which clients may connect, which peers are trusted, errors for people, and rotated files."""

import asyncio
import time
from pathlib import Path
from stat import S_IRUSR

import grpc
import pytest
import structlog
from factories.credentials import CLIENT, SERVER, Authority, Files

from sluice.contracts.ids import NodeName
from sluice.contracts.pb import agent_pb2, agent_pb2_grpc, node_pb2
from sluice.contracts.rpc_permissions import Caller, dns_name, node_dns_name
from sluice.runtime.grpc import transport
from sluice.runtime.grpc.security import TlsIdentity, TransportSecurity, security_from_settings
from sluice.runtime.grpc.self_made_identity import SelfMadeIdentity
from sluice.runtime.settings import CommonSettings
from sluice.runtime.tls.certificate_files import CertificateError, CertificateFiles, CertificateMaterial, WatchedFiles

NODE, OTHER = (node_dns_name(NodeName(name)) for name in ("gpu-1.example", "gpu-2"))
INVENTORY = dns_name(Caller.INVENTORY)
HOUR_S = 3600


def identity(files: Files, *names: str) -> TlsIdentity:
    return TlsIdentity(files.certificate, files.key, files.authority, names, look_s=0)


def security(files: Files) -> TransportSecurity:
    return TransportSecurity(identity(files))


class _Agent(agent_pb2_grpc.AgentServiceServicer):
    async def GetInventory(self, request, context):  # noqa: N802 - the method's name in the contract
        return node_pb2.NodeSnapshot(node=request.node)

    def register(self, server: grpc.aio.Server) -> None:
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, server)


def served(files: Files, **more):
    return transport.serve(_Agent().register, security=security(files), **more)


async def asked(address: str, caller: TransportSecurity, server_name: str = NODE) -> str:
    """An agent's answer: its node's name, or the error in our wording."""
    async with transport.channel(address, security=caller, server_name=server_name) as channel:
        try:
            answer = await agent_pb2_grpc.AgentServiceStub(channel).GetInventory(
                agent_pb2.GetInventoryRequest(node="gpu-1.example")
            )
        except grpc.aio.AioRpcError as error:
            return transport.why_untrusted(error, security=caller, server_name=server_name) or repr(error)
    return answer.node


@pytest.fixture
def ours(tmp_path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path) -> Authority:
    return Authority(tmp_path / "theirs")


@pytest.fixture
def foreign(tmp_path) -> Authority:
    return Authority(tmp_path / "foreign", "Foreign")


async def test_an_agent_with_a_key_of_its_own_is_the_one_that_was_published(ours, theirs):
    """A node joins without a certificate made for it; no other process can answer in its name."""

    def made(*names: str) -> SelfMadeIdentity:
        return SelfMadeIdentity(ours.files("ca", "x").authority, names or (NODE,), look_s=0)

    agent, later, another = made(), made(), made(OTHER)
    caller, stranger = security(ours.files("inventory", INVENTORY)), security(theirs.files("inventory", INVENTORY))
    async with transport.serve(_Agent().register, security=TransportSecurity(agent)) as address:
        assert await asked(address, caller.trusting(agent.certificate)) == "gpu-1.example"
        for pinned, why in (
            (later.certificate, "its certificate is not the one on the bus"),
            (another.certificate, "its certificate is not the one on the bus"),
            ("no certificate\n", "what it has published is no certificate"),
            ("", "its certificate is of an authority that grpc_ca_file does not hold"),
        ):
            assert await asked(address, caller.trusting(pinned)) == f"the server is not trusted: {why}"
        said = await asked(address, caller.trusting(agent.certificate), OTHER)
        assert said == f"the server is not trusted: its certificate is not for {OTHER}"
        assert "does it accept our certificate?" in await asked(address, stranger.trusting(agent.certificate))
    assert agent.current().key not in agent.certificate.encode()


@pytest.mark.parametrize("name", [dns_name(Caller.ALLOCATOR), OTHER, "example.internal"])
async def test_a_caller_without_the_right_gets_the_reason(ours, name):
    async with served(ours.files("node", NODE)) as address:
        with structlog.testing.capture_logs() as logged:
            answers = [await asked(address, security(ours.files("caller", name))) for _ in range(3)]
    assert len(set(answers)) == 1
    assert answers[0].startswith("the server denies access: /sluice.v1.AgentService/GetInventory may be called by ")
    assert answers[0].endswith(f"the certificate of this caller says {name}")
    # Also on the agent's side, and not once per call.
    assert [entry["why"] for entry in logged if entry["event"] == "refused a call"] == [
        answers[0].removeprefix("the server denies access: ")
    ]


class _Shameless(TlsIdentity):
    """Shows what we would refuse of ourselves at the start, as another process may."""

    def __post_init__(self) -> None:
        paths = self.certificate_file, self.key_file, self.ca_file
        self._shown = CertificateMaterial(*(path.read_bytes() for path in paths), names=(), ends=None)

    def current(self) -> CertificateMaterial:
        return self._shown

    @classmethod
    def of(cls, files: Files, authority: Path) -> TransportSecurity:
        return TransportSecurity(cls(files.certificate, files.key, authority))


@pytest.mark.parametrize(
    ("whose", "options"),
    [("theirs", {}), ("ours", {"age_days": 826}), ("ours", {"usages": (SERVER,)})],
    ids=["foreign", "ended", "for servers"],
)
async def test_a_client_without_a_valid_certificate_is_refused(ours, request, whose, options):
    node, shown = ours.files("node", NODE), request.getfixturevalue(whose).files("shown", INVENTORY, **options)
    async with served(node) as address:
        answer = await asked(address, _Shameless.of(shown, node.authority))
    assert answer == "the server closed the connection at once: does it accept our certificate?"


async def test_a_client_without_a_certificate_is_refused(ours):
    files = ours.files("node", NODE)
    async with served(files) as address:
        answer = await asked(address, transport.LOOPBACK)
        assert answer == "the server closed the connection at once: does it require TLS?"
        credentials = grpc.ssl_channel_credentials(files.authority.read_bytes())
        options = (("grpc.ssl_target_name_override", NODE),)
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await agent_pb2_grpc.AgentServiceStub(channel).GetInventory(agent_pb2.GetInventoryRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


NO_AUTHORITY_OF_OURS = "its certificate is of an authority that grpc_ca_file does not hold"


@pytest.mark.parametrize(
    ("whose", "name", "options", "why"),
    [
        ("ours", OTHER, {}, f"its certificate is not for {NODE}"),
        ("theirs", NODE, {}, NO_AUTHORITY_OF_OURS),
        ("foreign", NODE, {}, NO_AUTHORITY_OF_OURS),
        ("ours", NODE, {"age_days": 826}, "its certificate has expired"),
        ("ours", NODE, {"age_days": -2}, "its certificate is not valid yet; is a clock wrong?"),
        ("ours", NODE, {"usages": (CLIENT,)}, "its certificate is not one of a server"),
    ],
    ids=["another node", "foreign", "other name", "ended", "to come", "for clients"],
)
async def test_a_server_that_is_not_the_nodes_agent_is_not_believed(ours, request, whose, name, options, why):
    """Its answer would be booked as this node's; and a person must know which certificate to check."""
    inventory = ours.files("inventory", INVENTORY)
    shown = _Shameless.of(request.getfixturevalue(whose).files("shown", name, **options), inventory.authority)
    async with transport.serve(_Agent().register, security=shown) as address:
        assert await asked(address, security(inventory)) == f"the server is not trusted: {why}"


async def test_a_server_that_speaks_plain_text_is_not_believed(ours):
    async with transport.serve(_Agent().register) as address:
        said = await asked(address, security(ours.files("inventory", INVENTORY)))
    assert said == "the server is not trusted: it speaks plain text, and TLS is configured"


async def test_a_server_that_is_away_is_not_called_a_stranger(ours):
    """An agent that is being restarted has nothing wrong with its certificate."""
    async with served(ours.files("node", NODE)) as address:
        gone = address
    assert "UNAVAILABLE" in await asked(gone, security(ours.files("inventory", INVENTORY)))


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "10.1.2.3:9411", "gpu-1.example:9411", "127.0.0.1.example:1"]
)
async def test_nothing_is_said_in_plain_text_beyond_this_machine(address):
    """A forgotten setting would open every node to the network, unnoticed."""
    sentence = "would be plain text beyond this machine: set grpc_certificate_file, .* or grpc_plain_text = true"
    with pytest.raises(transport.PlainTextError, match=sentence):
        async with transport.serve(_Agent().register, address=address):
            pass
    with pytest.raises(transport.PlainTextError, match=sentence):
        async with transport.channel(address):
            pass


async def test_a_unix_socket_needs_no_certificate(ours, tmp_path):
    """File permissions decide: people on the node, and its kubelet, have no certificate."""
    address = f"unix:{tmp_path / 'a.sock'}"
    async with served(ours.files("node", NODE), address=address):
        assert await asked(address, transport.LOOPBACK) == "gpu-1.example"


async def test_a_new_certificate_is_shown_without_a_restart(ours):
    """Certificates expire; the agent of a node with running pods goes on."""
    inventory = security(ours.files("inventory", INVENTORY))
    async with served(ours.files("node", OTHER)) as address:
        assert "is not for" in await asked(address, inventory)
        ours.files("node", NODE)
        assert await asked(address, inventory) == "gpu-1.example"


async def test_a_connection_is_renewed_after_a_while_and_no_call_is_lost(ours):
    """A client must show its certificate again, or its admission would never end."""
    inventory = security(ours.files("inventory", INVENTORY))
    seen = set()
    node = _Agent()

    async def say_who(request, context):
        seen.add(context.peer())
        return node_pb2.NodeSnapshot(node=request.node)

    node.GetInventory = say_who
    async with (
        transport.serve(node.register, security=security(ours.files("node", NODE)), connection_s=0.1) as address,
        transport.channel(address, security=inventory, server_name=NODE) as channel,
        asyncio.timeout(20),
    ):
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        while len(seen) < 3:
            assert (await stub.GetInventory(agent_pb2.GetInventoryRequest(node="a"))).node == "a"


async def test_bad_files_change_nothing_but_the_log(ours, theirs):
    """Half of a rotation, or a typo, does not cut a node off."""
    files = ours.files("node", NODE)
    shown = identity(files, NODE)
    first = shown.current()
    other = theirs.files("node", NODE)
    for spoil, why in (
        (lambda: files.certificate.write_bytes(b""), "has 0 bytes"),
        (lambda: files.certificate.write_bytes(other.certificate.read_bytes()), "vouches for"),
        (lambda: ours.files("node", OTHER), f"must be for {NODE}, and is for {OTHER}"),
        (files.certificate.unlink, "cannot be read"),
    ):
        spoil()
        with structlog.testing.capture_logs() as logged:
            assert shown.current() is first
            assert shown.current() is first
        (entry,) = [each for each in logged if each["log_level"] == "error"]
        assert entry["event"] == "the new files are invalid; the old ones stay in use"
        assert why in entry["why"]
    ours.files("node", NODE)
    assert shown.current() is not first
    assert shown.current() is shown.current()


async def test_a_new_certificate_that_is_not_valid_yet_is_shown_once_it_is(ours):
    """Its issuer's clock is ahead of ours: the old one is presented until it has expired."""
    shown = identity(ours.files("node", NODE), NODE)
    first = shown.current()
    ours.files("node", NODE, age_days=-(HOUR_S + 1.5) / (24 * HOUR_S))  # an hour is what our own tool leaves to clocks
    with structlog.testing.capture_logs() as logged:
        assert shown.current() is first
        async with asyncio.timeout(10):
            while shown.current() is first:  # noqa: ASYNC110 - files
                await asyncio.sleep(0.2)
    refused, taken = (entry for entry in logged if entry["log_level"] != "warning")
    assert "is not valid yet" in refused["why"]
    assert taken["event"] == "read again"


def test_a_new_certificate_that_we_were_not_let_read_is_shown_when_we_are(ours):
    """An operator who installed it as root sees the log, and gives it to the service's user."""
    files = ours.files("node", NODE)
    reads = CertificateFiles(files.certificate, files.key, files.authority)

    def read() -> CertificateMaterial:
        if not files.certificate.stat().st_mode & S_IRUSR:  # as it is for a user other than root
            raise CertificateError(f"{files.certificate} cannot be read")
        return reads.read()

    watched = WatchedFiles(reads.paths, read, part="certificate", look_s=0.001)
    first = watched.current()
    ours.files("node", NODE)
    files.certificate.chmod(0)
    time.sleep(0.002)
    assert watched.current() is first
    files.certificate.chmod(S_IRUSR)
    time.sleep(0.002)
    assert watched.current() is not first


def test_a_certificate_that_ends_soon_is_warned_of_once(ours):
    """The pull that fails at night could have been seen two weeks before."""
    shown = identity(ours.files("node", NODE, age_days=825 - 10))
    with structlog.testing.capture_logs() as logged:
        shown.current()
        shown.current()
    assert [(entry["log_level"], entry["event"]) for entry in logged] == [
        ("warning", "the certificate should have been renewed")
    ]


def settings(certificate=None, key=None, ca=None, *, plain_text: bool = False) -> CommonSettings:
    paths = {"grpc_certificate_file": certificate, "grpc_key_file": key, "grpc_ca_file": ca}
    return CommonSettings(**paths, grpc_plain_text=plain_text)


def test_what_a_certificate_says_is_read_at_the_start(ours):
    for usages in ((SERVER,), (CLIENT,), (SERVER, CLIENT)):
        files = ours.files("any", NODE, OTHER, usages=usages)
        how = security_from_settings(settings(files.certificate, files.key, files.authority), NODE, OTHER)
        assert how.current().names == (NODE, OTHER)
    assert security_from_settings(settings()) == transport.LOOPBACK
    assert security_from_settings(settings(plain_text=True)) == TransportSecurity(plain_text=True)


@pytest.mark.parametrize(
    ("certificate", "key", "ca", "why"),
    [
        ("ended", "ended", "ca", "grpc_certificate_file: the certificate in .*ended.pem has expired; renew it"),
        ("to come", "to come", "ca", "the certificate in .* is not valid yet; is the clock of this machine right"),
        ("node", "node", "ca", r"the certificate in .* is not one that .*ca.crt \(grpc_ca_file\) vouches for: "),
        ("other", "other", "ca", f"the certificate in .* must be for {NODE}, and is for {OTHER}$"),
        ("good", "other", "ca", "grpc_key_file: .*other.pem is not the key of the certificate in .*good.pem"),
        ("good", "text", "ca", "must hold a certificate and its key as PEM, the key without a password"),
        ("text", "good", "ca", "must hold a certificate and its key as PEM"),
        ("good", "empty", "ca", "grpc_key_file: .* has 0 bytes; PEM is expected"),
        ("good", "good", "missing", "grpc_ca_file: .* cannot be read: No such file"),
        ("good", "good", "text", "grpc_ca_file: .* holds no certificates"),
        ("good", "good", "huge", "grpc_ca_file: .* bytes; PEM is expected, up to"),
    ],
)
def test_files_that_are_no_good_are_one_sentence_at_the_start(ours, theirs, tmp_path, certificate, key, ca, why):
    """Else it is a handshake that fails an hour later, on another machine, in OpenSSL's wording."""
    made = [theirs.files("node", NODE), ours.files("other", OTHER), ours.files("good", NODE)]
    made += [ours.files("ended", NODE, age_days=826), ours.files("to come", NODE, age_days=-2)]
    paths = {files.certificate.stem: files.certificate for files in made}
    paths |= {name: tmp_path / name for name in ("text", "empty", "huge", "missing")}
    paths["ca"] = made[-1].authority
    for name, text in (("text", b"hello"), ("empty", b""), ("huge", b"x" * 300_000)):
        paths[name].write_bytes(text)
    with pytest.raises(CertificateError, match=why):
        security_from_settings(settings(paths[certificate], paths[key], paths[ca]), NODE)


def test_half_of_the_settings_are_refused(ours):
    """A process with a certificate and no authority would trust every peer."""
    files = ours.files("node", NODE)
    with pytest.raises(CertificateError, match="grpc_ca_file must be set too: all three of them, or none"):
        security_from_settings(settings(files.certificate, files.key))
    with pytest.raises(CertificateError, match="only one of them can hold"):
        security_from_settings(settings(files.certificate, files.key, files.authority, plain_text=True))
