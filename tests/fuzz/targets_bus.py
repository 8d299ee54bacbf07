"""What comes over the bus and over gRPC: messages, subjects, the broker's own answers, questions, callers' words."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fuzz.checking import Target
from fuzz.memory_files import as_text, of_text
from google.protobuf.message import DecodeError, Message
from message_examples import EXAMPLES
from nats.aio.msg import Msg

from sluice.contracts.bus import subjects
from sluice.contracts.bus.codec import SCHEMA, Undecodable, decode, encode
from sluice.contracts.bus.subjects import SubjectError
from sluice.contracts.messages import Envelope, NodeInventory
from sluice.contracts.pb import agent_pb2, allocator_pb2, csi_pb2, inventory_pb2, node_pb2
from sluice.contracts.proto import snapshots
from sluice.contracts.rpc_permissions import deny_reason
from sluice.contracts.slice_usage import NodeUsage
from sluice.runtime.nats.client import Client
from sluice.runtime.nats.wire_format import ApiError, answer_of, delivery_of, read_stored, times_of
from sluice.runtime.tracing import request_traces
from sluice_allocator.shell.rpc_answers import QuestionError, change_asked, pods_asked
from sluice_node_agent.csi.kubelet_paths import NoTarget, PurePath, target_of

_HEAD = {"id": "r-1.1", "operation": "r-1", "request": "p1", "schema": SCHEMA, "time": "2026-01-01T00:00:00+00:00"}
_SENT: Sequence[bytes] = tuple(encode(Envelope(**_HEAD, message=each)) for each in EXAMPLES)
_SUBJECT = "sluice.ledger.gpu-1=example.pods-7f3a-4_a91c_12"


def _message(data: bytes) -> str:
    found = decode(data)
    if isinstance(found, Undecodable):
        return found.why
    assert decode(encode(found)) == found, "a message that was read is another one when it is written and read again"
    return ""


def _stored(data: bytes) -> str:
    subject, _, body = data.partition(b"\n")
    message = Client()._build_message(1, subject, b"", body, None)
    return read_stored(message.subject, 7, message.data).why


def _subject(data: bytes) -> None:
    text = Client()._build_message(1, data, b"", b"", None).subject
    address = subjects.parse(text)
    assert address.subject == text.removeprefix(subjects.HISTORY_PREFIX), f"it is read as {address.subject!r}"


def _times(data: bytes) -> None:
    stamp, _, body = data.partition(b"\n")
    times_of(_msg(body, {"Nats-Time-Stamp": stamp.decode("utf-8", "replace")}))


def _msg(data: bytes, headers: dict[str, str]) -> Msg:
    return Msg(_client=SimpleNamespace(), subject=_SUBJECT, data=data, headers=headers)  # type: ignore[arg-type]


# -- gRPC ---------------------------------------------------------------------------------------------------------


def _parsed(message: Message, data: bytes) -> Any:
    """What gRPC's own layer does before our code is called; what it refuses never gets here."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


def _journeys(kind: type[Message], read: Callable[[Any], Any], write: Callable[[Any], Any]) -> Callable[[bytes], str]:
    """What is read is the same after another journey; NaN is no number, and so equals not even itself."""

    def target(data: bytes) -> str:
        message = _parsed(kind(), data)
        if message is None:
            return ""
        found = read(message)
        if isinstance(found, Undecodable):
            return found.why
        assert read(write(found)) == found or (isinstance(found, NodeUsage) and "nan" in repr(found)), (
            "it is another one"
        )
        return ""

    return target


def _asked(kind: type[Message], read: Callable[[Any], object]) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        if (message := _parsed(kind(), data)) is not None:
            read(message)

    return target


def _volume(data: bytes) -> str:
    message = _parsed(csi_pb2.NodePublishVolumeRequest(), data)
    if message is None:
        return ""
    root = PurePath("/var/lib/kubelet")
    found = target_of(message.target_path, root, uid=message.volume_context.get("csi.storage.k8s.io/pod.uid", ""))
    if isinstance(found, NoTarget):
        return found.why
    place = root.joinpath(*found.parents, "mount")
    assert str(place) == message.target_path, "another place than the one that was named"
    assert ".." not in place.parts, "a place above the kubelet's directory"
    return ""


def _caller(data: bytes) -> str:
    method, _, names = as_text(data).partition("\n")
    return deny_reason(names.split("\n"), method[:200])


def _trace(data: bytes) -> None:
    text = as_text(data)
    with request_traces.within(text):
        assert request_traces.current() in {text, ""}
    request_traces.RequestTraces().remember("p1", {request_traces.TRACEPARENT: text})


_INVENTORY = next(each for each in EXAMPLES if isinstance(each, NodeInventory))
_SIMULATE = allocator_pb2.SimulateRequest(
    namespace="research",
    annotations={"sluice.dev/profile": "1g.5gb"},
    containers=[allocator_pb2.ContainerAsk(name="main", limits={"nvidia.com/gpu": "1"}, run_as_user=1000)],
    host=allocator_pb2.HostNeeds(
        node_name="gpu-1",
        node_selector={"zone": "a"},
        tolerations=[allocator_pb2.Toleration(key="k", operator="Exists", effect="NoSchedule")],
    ),
)
_USED = agent_pb2.NodeUsage(
    node="gpu-1",
    every_s=30.0,
    slices=[agent_pb2.SliceUsage(allocation="a", gpu="GPU-1", mode=node_pb2.MODE_MPS, busy_percent=7.5)],
)
_UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
_PUBLISH = csi_pb2.NodePublishVolumeRequest(
    target_path=f"/var/lib/kubelet/pods/{_UID}/volumes/kubernetes.io~csi/sluice/mount",
    volume_context={"csi.storage.k8s.io/pod.uid": _UID},
)

SNAPSHOT = _journeys(node_pb2.NodeSnapshot, snapshots.snapshot_from_proto, snapshots.snapshot_to_proto)
INVENTORY = _journeys(inventory_pb2.NodeInventory, snapshots.inventory_from_proto, snapshots.inventory_to_proto)
USAGE = _journeys(agent_pb2.NodeUsage, snapshots.usage_from_proto, snapshots.usage_to_proto)

TARGETS: tuple[Target, ...] = (
    Target("bus message", _message, _SENT),
    Target("stored message", _stored, [_SUBJECT.encode() + b"\n" + each for each in _SENT]),
    Target(
        "subject",
        _subject,
        [b"sluice.request.pods-1", _SUBJECT.encode(), b"hist.sluice.node.gpu-1", b"sluice.lease.allocator"],
        (SubjectError,),
    ),
    Target("times of a message", _times, [b"2026-01-01T00:00:00.123456789Z\n" + each for each in _SENT[:3]]),
    Target(
        "broker's answer",
        lambda data: answer_of(_SUBJECT, _msg(data, {})),
        [
            b'{"stream":"BOOK","seq":7}',
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"stream":"BOOK","seq":0}',
        ],
        (ApiError, TimeoutError),
    ),
    Target(
        "delivery",
        of_text(delivery_of),
        [b"$JS.ACK.BOOK.c1.1.7.9.1767225600000000000.3", b"$JS.ACK.d.a.BOOK.c.1.7.9.1.3.x"],
    ),
    Target("gRPC snapshot", SNAPSHOT, [snapshots.snapshot_to_proto(_INVENTORY.snapshot).SerializeToString()]),
    Target("gRPC inventory", INVENTORY, [snapshots.inventory_to_proto(_INVENTORY).SerializeToString()]),
    Target("gRPC usage", USAGE, [_USED.SerializeToString()]),
    Target(
        "gRPC question",
        _asked(allocator_pb2.SimulateRequest, pods_asked),
        [_SIMULATE.SerializeToString()],
        (QuestionError,),
    ),
    Target(
        "gRPC adjustment",
        _asked(allocator_pb2.AdjustRequest, change_asked),
        [allocator_pb2.AdjustRequest(request="p1", container="main", memory_mib=4096).SerializeToString()],
    ),
    Target("CSI volume", _volume, [_PUBLISH.SerializeToString()]),
    Target("caller", _caller, [b"/sluice.v1.AllocatorService/Adjust\nconsole.sluice.internal\nallocator.x"]),
    Target("traceparent", _trace, [b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]),
)
