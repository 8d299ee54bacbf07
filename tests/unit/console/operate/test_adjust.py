"""`sluice adjust`: sizes as a person writes them, and the allocator's answer as text and as data."""

import pytest

from sluice.contracts.pb import allocator_pb2 as pb
from sluice_console.core.documents import FittingDocument
from sluice_console.core.operate.resize import AdjustError, SizeChange, document_of, lines_of, question_of

FIELDS = [
    pb.AdjustedField(field="memory_mib", before=8000, after=4000, effect=pb.ADJUST_EFFECT_NEXT_PROCESS_START),
    pb.AdjustedField(field="sm_partition", before=20, after=20, effect=pb.ADJUST_EFFECT_UNCHANGED),
    pb.AdjustedField(field="quota_request_permille", before=1000, after=500, effect=pb.ADJUST_EFFECT_NOW),
]
ADJUSTED = pb.Adjusted(allocation="a1", node="gpu-1", container="main", revision=2, fields=FIELDS)


def test_sizes_are_what_was_written_and_nothing_else_is_named():
    asked = question_of("r1", "main", SizeChange(memory="8Gi", quota_request="0.25"), dry_run=True)
    assert (asked.memory_mib, asked.quota_request_permille) == (8192, 250)
    assert [asked.HasField(name) for name in ("sm_partition", "quota_limit_permille")] == [False, False]
    assert (asked.request, asked.container, asked.dry_run) == ("r1", "main", True)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (SizeChange(), "name at least one size"),
        (SizeChange(memory="much"), "--memory much"),
        (SizeChange(memory="-1Gi"), "--memory -1Gi"),
        (SizeChange(sm_partition="20%"), "--sm-partition 20%"),
        (SizeChange(quota_limit="0.12345"), "--quota-limit 0.12345"),
    ],
)
def test_what_is_no_size_is_named_with_its_option(sizes, words):
    with pytest.raises(AdjustError, match=words):
        question_of("r1", "", sizes, dry_run=False)


def test_a_change_says_per_field_when_it_is_felt():
    """A person would wait for memory that comes with the next start only."""
    document = document_of("r1", "lab/train", pb.AdjustResponse(adjusted=ADJUSTED), dry_run=False)
    assert (document.outcome, document.revision, len(document.fields)) == ("adjusted", 2, 3)
    assert lines_of(document) == [
        "lab/train is adjusted on gpu-1, container main:",
        "  memory 8000 MiB -> 4000 MiB, from the next start of its containers; running processes keep the old size",
        "  guaranteed fraction of time 1 -> 0.5, now",
        "  the old size counts until the running processes have ended",
    ]


def test_a_refusal_says_what_would_fit():
    why = {"reason": pb.ADJUST_REFUSAL_CAPACITY_EXCEEDED, "message": "its device has not that much memory left"}
    refused = pb.AdjustRefused(**why, most=[pb.FittingValue(field="memory_mib", value=6000)])
    document = document_of("r1", "lab/train", pb.AdjustResponse(refused=refused), dry_run=False)
    assert (document.outcome, document.reason) == ("refused", "CapacityExceeded")
    assert document.most == (FittingDocument(field="memory_mib", value=6000),)
    assert lines_of(document) == [f"lab/train stays as it is (CapacityExceeded): {why['message']}"]


def test_every_reason_and_effect_of_the_wire_has_a_word():
    for value in pb.AdjustRefusal.values()[1:]:
        answer = pb.AdjustResponse(refused=pb.AdjustRefused(reason=value, message="m"))
        assert document_of("r1", "n", answer, dry_run=False).reason
    for value in pb.AdjustEffect.values()[2:]:
        fields = [pb.AdjustedField(field="memory_mib", before=1, after=2, effect=value)]
        answer = pb.AdjustResponse(adjusted=pb.Adjusted(fields=fields))
        assert len(lines_of(document_of("r1", "n", answer, dry_run=False))) == 2
