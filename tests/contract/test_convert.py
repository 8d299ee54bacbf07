"""The gRPC form of a snapshot has the same content as the bus form, and nothing from the wire can raise."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_args, get_origin

import msgspec
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contracts import messages as msg
from sluice.contracts.bus.codec import Undecodable
from sluice.contracts.pb import inventory_pb2, node_pb2
from sluice.contracts.proto.snapshots import (
    inventory_from_proto,
    inventory_to_proto,
    snapshot_from_proto,
    snapshot_to_proto,
)

WIDE = {"memory_mib", "generation", "revision", "request_revision", "uid", "cpu_milli", "pid"}
ROOT = Path(__file__).resolve().parents[2]


def structs(cls: type[msgspec.Struct], **parts: st.SearchStrategy) -> st.SearchStrategy:
    """Any value of a struct: numbers as wide as their protobuf fields, any text, and `parts` for what is nested."""
    fields = {}
    for field in msgspec.structs.fields(cls):
        if field.name in parts:
            fields[field.name] = parts[field.name]
        elif field.type is int or get_origin(field.type) is Annotated:  # a number with bounds for decoders
            bits = 63 if field.name in WIDE else 31
            fields[field.name] = st.integers(-(2**bits), 2**bits - 1)
        elif field.type is bool:
            fields[field.name] = st.booleans()
        elif type(None) in get_args(field.type):
            within = st.integers(-(2**31), 2**31 - 1) if int in get_args(field.type) else st.text(max_size=8)
            fields[field.name] = st.none() | within
        else:
            fields[field.name] = st.text(max_size=8)
    return st.builds(cls, **fields)


def some(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(strategy, max_size=2).map(tuple)


def numbers(bits: int) -> st.SearchStrategy:
    return st.dictionaries(st.text(max_size=8), st.integers(-(2**bits), 2**bits - 1), max_size=2)


SPANS = structs(msg.PlacementReport)
GPUS = structs(
    msg.GpuReport,
    profiles=some(structs(msg.ProfileReport, placements=some(SPANS))),
    instances=some(structs(msg.InstanceReport)),
    creatable=numbers(31),
    quarantined=some(SPANS),
    links=numbers(31),
    daemons=some(structs(msg.MpsDaemonReport, state=st.sampled_from(get_args(msg.DaemonState)))),
)
SHARES = structs(msg.Share, mode=st.sampled_from(("mps", "fractional")))
DEVICES = some(structs(msg.DeviceGrant, share=st.none() | SHARES))
RESOURCE_CLAIMS = structs(
    msg.ResourceClaimRef, requests=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)
)
SLICES = structs(
    msg.SliceReport,
    booking=structs(
        msg.Booking,
        devices=DEVICES,
        room=structs(msg.HostRoom, resources=numbers(63)),
        resource_claims=some(RESOURCE_CLAIMS),
    ),
    after=some(st.text(max_size=8)),
    counts=DEVICES,
    state=st.sampled_from(get_args(msg.SliceState)),
)
MODES = st.lists(st.sampled_from(get_args(msg.Mode)), min_size=1, max_size=3).map(tuple)
TEXTS = some(st.text(max_size=8))
SNAPSHOTS = structs(
    msg.NodeSnapshot, gpus=some(GPUS), slices=some(SLICES), modes=MODES, warnings=TEXTS, doubtful_tickets=TEXTS
)


@settings(deadline=None, max_examples=50)
@given(SNAPSHOTS)
def test_a_pulled_snapshot_says_all_that_the_agent_said(snapshot: msg.NodeSnapshot):
    """Struct to bytes of protobuf and back is the same struct."""
    data = snapshot_to_proto(snapshot).SerializeToString()
    assert snapshot_from_proto(node_pb2.NodeSnapshot.FromString(data)) == snapshot


@settings(deadline=None, max_examples=30)
@given(structs(msg.NodeInventory, snapshot=SNAPSHOTS))
def test_a_watched_inventory_says_all_that_the_bus_says(inventory: msg.NodeInventory):
    """Struct to bytes of protobuf and back is the same struct, staleness and time included."""
    data = inventory_to_proto(inventory).SerializeToString()
    assert inventory_from_proto(inventory_pb2.NodeInventory.FromString(data)) == inventory


def test_no_field_of_the_bus_form_is_missing_in_the_grpc_form():
    """Each struct has the same fields as its protobuf message: adding one reminds of the other."""
    pairs = [
        (msg.NodeSnapshot, node_pb2.NodeSnapshot),
        (msg.GpuReport, node_pb2.Gpu),
        (msg.PlacementReport, node_pb2.Placement),
        (msg.ProfileReport, node_pb2.Profile),
        (msg.InstanceReport, node_pb2.Instance),
        (msg.SliceReport, node_pb2.SliceReport),
        (msg.Booking, node_pb2.Booking),
        (msg.DeviceGrant, node_pb2.DeviceGrant),
        (msg.Share, node_pb2.Share),
        (msg.HostRoom, node_pb2.HostRoom),
        (msg.ResourceClaimRef, node_pb2.ResourceClaimRef),
        (msg.NodeInventory, inventory_pb2.NodeInventory),
    ]
    for struct, message in pairs:
        only_grpc = {"unchanged"} if message is node_pb2.NodeSnapshot else set()
        fields = {field.name for field in message.DESCRIPTOR.fields}
        assert set(struct.__struct_fields__) == fields - only_grpc, struct.__name__


def test_a_newer_agents_unknown_state_is_told_and_not_guessed():
    """A slice in a state of a later version makes the snapshot undecodable, with the reason."""
    slices = [node_pb2.SliceReport(booking=node_pb2.Booking(allocation="a_1"), state=99)]
    found = snapshot_from_proto(node_pb2.NodeSnapshot(node="n", slices=slices))
    assert found == Undecodable("slice a_1 is in state 99, which is unknown here")


def test_a_newer_agents_unknown_kind_of_share_is_told_and_not_guessed():
    """A tenant with unknown rights makes the snapshot undecodable, with the reason."""
    device = node_pb2.DeviceGrant(gpu="g", share=node_pb2.Share(mode=99))
    booking = node_pb2.Booking(allocation="a_1", devices=[device])
    slices = [node_pb2.SliceReport(booking=booking, state=node_pb2.SLICE_STATE_READY)]
    found = snapshot_from_proto(node_pb2.NodeSnapshot(slices=slices))
    assert found == Undecodable("slice a_1: a share of mode 99, which is unknown here")


def test_an_agent_of_before_the_shares_is_read_as_it_was_meant():
    """Defaults for an older agent: whole devices only, no time quotas, the usual number of MPS clients."""
    found = snapshot_from_proto(node_pb2.NodeSnapshot(node="n", gpus=[node_pb2.Gpu(uuid="g")]))
    assert isinstance(found, msg.NodeSnapshot)
    assert (found.modes, found.time_quota) == (("exclusive",), False)
    assert (found.gpus[0].mps_clients_max, found.gpus[0].numa_node, found.gpus[0].links) == (48, None, {})


def test_a_newer_agents_unknown_way_of_giving_devices_stops_nothing():
    """No request can use it here; the rest of the node stays usable."""
    found = snapshot_from_proto(node_pb2.NodeSnapshot(node="n", modes=[99, node_pb2.MODE_MPS]))
    assert isinstance(found, msg.NodeSnapshot)
    assert found.modes == ("mps",)


def test_a_slice_without_its_place_is_told_and_not_adopted():
    """A slice report without booking makes the snapshot undecodable."""
    slices = [node_pb2.SliceReport(state=node_pb2.SLICE_STATE_READY)]
    assert snapshot_from_proto(node_pb2.NodeSnapshot(slices=slices)) == Undecodable("a slice has no booking")


def test_an_inventory_with_an_unusable_snapshot_is_told():
    """An invalid snapshot makes its inventory invalid."""
    snapshot = node_pb2.NodeSnapshot(slices=[node_pb2.SliceReport()])
    assert inventory_from_proto(inventory_pb2.NodeInventory(snapshot=snapshot)) == Undecodable("a slice has no booking")


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=200))
def test_no_bytes_of_an_agent_can_stop_the_inventory(data: bytes):
    """Whatever protobuf accepts is converted or reported as undecodable."""
    try:
        message = node_pb2.NodeSnapshot.FromString(data)
    except DecodeError:
        return  # protobuf itself refused
    assert isinstance(snapshot_from_proto(message), msg.NodeSnapshot | Undecodable)


def test_the_committed_grpc_code_is_what_the_proto_files_say():
    """Generating again gives the same bytes; otherwise clients made from proto/ speak another language."""
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools/proto.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
