"""A fleet of any size can be listed, by clients with default settings: over real gRPC, with its limits of 4 MiB."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from factories.inventory import AT, Bench, gpu_report, news, snapshot

from sluice.contracts.ids import GpuUuid, NodeName
from sluice.contracts.messages import InstanceReport, NodeRemoved
from sluice.contracts.pb import inventory_pb2 as pb
from sluice.contracts.pb.inventory_pb2_grpc import InventoryServiceStub
from sluice.runtime.grpc import transport
from sluice_inventory.core.events import PullSucceeded
from sluice_inventory.shell.server import InventoryServer
from sluice_inventory.shell.watchers import Watchers

Asked = type[pb.ListGpusRequest] | type[pb.GetAllocationMapRequest]
CALLS = pytest.mark.parametrize("asked", [pb.ListGpusRequest, pb.GetAllocationMapRequest])


def pulled(bench: Bench, name: str, gpus: int = 2, **report) -> None:
    """A node as an agent reported it, with GPUs of its own."""
    node = NodeName(name)
    reports = tuple(gpu_report(uuid=GpuUuid(f"GPU-{name}-{at}"), index=at, **report) for at in range(gpus))
    bench.hear(news(node=node))
    bench.feed(PullSucceeded(node, snapshot(node=node, gpus=reports), AT))


@asynccontextmanager
async def asking(bench: Bench) -> AsyncIterator[InventoryServiceStub]:
    server = InventoryServer(bench.core, Watchers(watchers_max=1, pending_max=8))
    async with transport.serve(server.register) as address, grpc.aio.insecure_channel(address) as channel:
        yield InventoryServiceStub(channel)


async def answered(client: InventoryServiceStub, request):
    call = client.ListGpus if isinstance(request, pb.ListGpusRequest) else client.GetAllocationMap
    return await call(request, timeout=20)


def uuids(answer) -> list[str]:
    return [gpu.uuid for gpu in answer.gpus] if isinstance(answer, pb.ListGpusResponse) else sorted(answer.gpus)


async def pages(client: InventoryServiceStub, asked: Asked, size: int) -> list[list[str]]:
    found, token = [], ""
    while not found or token:
        answer = await answered(client, asked(page_size=size, page_token=token))
        found.append(uuids(answer))
        token = answer.next_page_token
    return found


@CALLS
async def test_every_gpu_is_on_one_page_and_a_node_on_one_alone(bench: Bench, asked: Asked):
    """A page size that does not divide the fleet loses no rest and splits no node; the last page is not empty."""
    for name in "abcde":
        pulled(bench, name)
    pulled(bench, "c-none", gpus=0)
    async with asking(bench) as client:
        everything = uuids(await answered(client, asked()))
        assert len(everything) == 10
        for size, lengths in ((1, [2] * 5), (3, [4, 4, 2]), (4, [4, 4, 2]), (10, [10]), (2**31 - 1, [10])):
            found = await pages(client, asked, size)
            assert [len(page) for page in found] == lengths, size
            assert [uuid for page in found for uuid in page] == everything
        chosen = asked(nodes=["d", "b"], page_size=1)
        first = await answered(client, chosen)
        chosen.page_token = first.next_page_token
        second = await answered(client, chosen)
        assert (uuids(first), uuids(second)) == (["GPU-b-0", "GPU-b-1"], ["GPU-d-0", "GPU-d-1"])
        assert not second.next_page_token


@CALLS
async def test_a_node_that_comes_or_goes_between_two_pages_hides_no_other(bench: Bench, asked: Asked):
    """Paging through a fleet that scales shows every node that existed all the time."""
    for name in "bcd":
        pulled(bench, name, gpus=1)
    async with asking(bench) as client:
        first = await answered(client, asked(page_size=2))
        assert uuids(first) == ["GPU-b-0", "GPU-c-0"]
        pulled(bench, "a", gpus=1)
        bench.hear(NodeRemoved(node=NodeName("c"), cause="scaled down"))
        second = await answered(client, asked(page_size=2, page_token=first.next_page_token))
        assert uuids(second) == ["GPU-d-0"]


async def test_the_sums_of_the_first_page_are_of_the_whole_fleet(bench: Bench):
    """A client that wants only the sums asks for one small page."""
    for name in "abc":
        pulled(bench, name)
    async with asking(bench) as client:
        first = await answered(client, pb.ListGpusRequest(page_size=1))
        assert (len(first.gpus), first.totals.nodes, first.totals.gpus, first.totals.creatable_total) == (2, 3, 6, 114)
        second = await answered(client, pb.ListGpusRequest(page_size=1, page_token=first.next_page_token))
        assert not second.HasField("totals")


@CALLS
async def test_a_page_is_small_enough_for_every_client_whatever_is_on_it(bench: Bench, asked: Asked):
    """A default client accepts 4 MiB: with large reports a page ends early, and the unpaged answer is refused."""
    long = InstanceReport(gi_id=7, profile="1g.5gb", start=6, size=1, uuid=f"MIG-{'u' * 3_000}")
    names = [f"gpu-{number:04}" for number in range(250)]
    for name in names:
        pulled(bench, name, gpus=8, health_message="h" * 3_000, healthy=False, instances=(long,))
    async with asking(bench) as client:
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await answered(client, asked())
        found = await pages(client, asked, 100_000)
        assert 2 <= len(found) <= 3
        assert [uuid for page in found for uuid in page] == [f"GPU-{name}-{at}" for name in names for at in range(8)]


@CALLS
async def test_a_node_that_is_a_page_too_large_is_a_page_of_its_own(bench: Bench, asked: Asked):
    """A client with a larger limit gets it, and the nodes behind it stay reachable."""
    long = InstanceReport(gi_id=7, profile="1g.5gb", start=6, size=1, uuid=f"MIG-{'u' * 1_000_000}")
    for name, instances in (("a", ()), ("b", (long,)), ("c", ())):
        pulled(bench, name, gpus=4, health_message="h" * (1_000_000 if instances else 0), instances=instances)
    server = InventoryServer(bench.core, Watchers(watchers_max=1, pending_max=8))
    async with transport.serve(server.register) as address, transport.channel(address) as channel:
        assert [len(page) for page in await pages(InventoryServiceStub(channel), asked, 100)] == [4, 4, 4]


@CALLS
async def test_all_at_once_is_refused_in_words_where_it_is_too_much(bench: Bench, asked: Asked):
    """The server does not build an answer that it cannot send, and says how to page."""
    long = InstanceReport(gi_id=7, profile="1g.5gb", start=6, size=1, uuid=f"MIG-{'u' * 1_000_000}")
    for name in "abcde":
        pulled(bench, name, gpus=4, health_message="h" * 1_000_000, instances=(long,))
    async with asking(bench) as client:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answered(client, asked())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == (
        "the GPUs up to node 'e' alone are more than an answer holds (16 MiB): "
        "ask page by page (page_size, for example 1000, and page_token) or for some of the nodes"
    )


@CALLS
async def test_a_page_that_cannot_be_is_refused_with_what_would_be_right(bench: Bench, asked: Asked):
    """A page is never silently the whole, or nothing."""
    pulled(bench, "a")
    async with asking(bench) as client:
        for wrong, told in (
            (asked(page_size=-1), "page_size is -1; it must be a number of GPUs, or 0 for all of them in one answer"),
            (asked(page_token="a"), "page_token is given without page_size; a next page has a size, too"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answered(client, wrong)
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, told)
        assert uuids(await answered(client, asked(page_size=5, page_token="zzz"))) == []
