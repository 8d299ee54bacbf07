"""The picture of the fleet, read without any colour."""

import pytest
from msgspec.structs import replace

from sluice.contracts.messages import PlacementReport
from sluice_console.core.documents import GpuDocument, GpusDocument, InstanceDocument
from sluice_console.core.fleet.gpus import gpus_document
from sluice_console.core.output.gpu_picture import compact_picture, picture, plain


def bars(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("[")]


def test_a_bar_shows_who_has_which_slices_and_what_is_free(make):
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report(instances=(make.made(),)), make.slice()))
    text = plain(picture(gpus_document(fleet_state), unicode=False))
    assert bars(text) == ["[.......|.......|.......|.......|A train 3g.20gb                ]"]
    assert "A  default/train  3g.20gb at 4 of GPU 0 on gpu-1.example.internal" in text


def test_a_gpu_names_the_largest_profile_that_fits(make):
    """By memory, and a media profile does not hide it; the numbers of instances stand below."""
    creatable = {"1g.5gb": 7, "1g.5gb+me": 1, "2g.10gb": 3, "7g.40gb": 0, "3g.20gb": 1}
    document = gpus_document(make.fleet_state(inventory=make.inventory(make.gpu_report(creatable=creatable))))
    head, _, fits = plain(picture(document)).splitlines()[1:4]
    assert head.endswith("largest that fits: 3g.20gb")
    assert fits.strip() == "fits 7x1g.5gb, 1x1g.5gb+me, 3x2g.10gb, 1x3g.20gb"


def test_the_compact_picture_has_one_line_per_gpu(make):
    """Its node without the domain, its index, its bar, and what still fits."""
    fleet_state = make.fleet_state(inventory=make.inventory(make.gpu_report(creatable={"1g.5gb": 7, "7g.40gb": 1})))
    [line] = plain(compact_picture(gpus_document(fleet_state), unicode=False)).splitlines()
    assert line.startswith("  gpu-1 GPU 0 [.......|")
    assert line.endswith("] largest that fits: 7g.40gb")


@pytest.mark.parametrize("slices", [4, 8, 12])
def test_every_bar_of_a_model_is_equally_wide_however_it_is_cut(make, slices):
    """So that bars below each other can be compared; models have 4, 8 or 12 memory slices."""
    (empty,) = gpus_document(make.fleet_state(inventory=make.inventory(make.gpu_report()))).gpus

    def gpu(*spans: tuple[int, int]) -> GpuDocument:
        places = tuple(
            InstanceDocument(profile="p", start=start, size=size, state="ready", owner=f"ns/a-rather-long-name-{start}")
            for start, size in spans
        )
        return replace(empty, uuid=str(spans), memory_slices=slices, instances=places)

    every = [(at, 1) for at in range(slices)]
    cuts = [(), ((0, slices),), ((0, 1),), ((slices - 1, 1),), ((1, 2),), tuple(every)]
    text = plain(picture(GpusDocument(gpus=tuple(gpu(*spans) for spans in cuts))))
    assert len({len(bar) for bar in bars(text)}) == 1


def test_an_empty_fleet_says_so():
    assert plain(picture(GpusDocument(gpus=()))) == "no GPU is known yet"


def test_a_home_shows_its_daemon_and_whom_it_serves(make):
    """Which pods may join, and whether the daemon lives, is asked first when a shared GPU does not work."""
    report = make.gpu_report(instances=(make.made("a_1"),), daemons=(make.daemon(clients=2),))
    inventory = make.inventory(report, make.slice(make.shared("a_1", "train")))
    text = plain(picture(gpus_document(make.fleet_state(inventory=inventory)), unicode=False))
    assert "       MPS daemon ready, 2 clients, for default (uid 1000)" in text.splitlines()


@pytest.mark.parametrize(
    ("state", "words"), [("fault", "MPS daemon fault: hit, 1 client,"), ("down", "MPS daemon down: hit,")]
)
def test_a_daemon_in_trouble_is_marked_where_people_look_first(make, state, words):
    """In the bar and in the legend: a home that is drawn like any other looks well."""
    gpu = make.gpu_report(
        instances=(make.made("a_1"),),
        daemons=(make.daemon(state=state, clients=1, message="hit"),),
        quarantined=(PlacementReport(start=4, size=4),),
    )
    inventory = make.inventory(gpu, make.slice(make.shared("a_1", "train")))
    lines = picture(gpus_document(make.fleet_state(inventory=inventory)), unicode=False)
    text = plain(lines)
    assert bars(text) == ["[.......|.......|.......|.......|A! 1 share 3g.20gb             ]"]
    assert "(not used for new slices)" in text
    assert words in text
    (warned,) = [piece.text for line in lines for piece in line if piece.kind == "warn" and piece.text.strip()]
    assert words in warned


@pytest.mark.parametrize(
    ("lost", "words"), [(True, "lost: it does not answer"), (False, "unhealthy: it does not answer")]
)
def test_a_lost_gpu_and_an_ill_one_are_told_apart(make, lost, words):
    gpu = make.gpu_report(healthy=False, lost=lost, health_message="it does not answer")
    assert words in plain(picture(gpus_document(make.fleet_state(inventory=make.inventory(gpu)))))


def test_a_gpu_without_mig_says_whether_it_can_be_shared(make):
    """A user who reads `given whole only` does not try."""
    gpu = make.gpu_report(mig=False, creatable={})
    alone = plain(picture(gpus_document(make.fleet_state(inventory=make.inventory(gpu)))))
    shared = make.inventory(gpu, modes=("exclusive", "mps"))
    assert "MIG is off: allocated whole only" in alone
    assert "MIG is off: allocated whole, or shared" in plain(picture(gpus_document(make.fleet_state(inventory=shared))))
    untold = make.inventory(replace(gpu, memory_mib=0), modes=("exclusive", "mps"))
    assert "MIG is off: allocated whole only" in plain(picture(gpus_document(make.fleet_state(inventory=untold))))
