"""`sluice events` and `sluice explain`: sentences for everything that is said on the bus."""

import typing

import msgspec
import pytest

from sluice.contracts.messages import AnyMessage, Envelope, Message
from sluice_console.core.history.sentences import HistoryMessage, RequestNames, places_text, sentence, whom

_EXAMPLES = {"int": 1, "str": "x", "bool": False, "float": 1.0}


def example(type_: type[Message]) -> Message:
    """Some message of a type: required fields by the simplest value their schema allows."""
    fields = {field.encode_name: simplest(field.type) for field in msgspec.structs.fields(type_) if field.required}
    return msgspec.convert({"type": type_.__name__} | fields, type_)


def simplest(wanted: object) -> object:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is tuple:
        return []
    if origin is dict:
        return {}
    if origin is typing.Literal:
        return arguments[0]
    if arguments:
        return simplest(arguments[0])
    if isinstance(wanted, typing.NewType):
        return simplest(wanted.__supertype__)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return {field.encode_name: simplest(field.type) for field in msgspec.structs.fields(wanted) if field.required}
    if isinstance(wanted, type) and issubclass(wanted, str) and wanted is not str:
        return next(iter(wanted)).value  # an enum of words
    return _EXAMPLES[wanted.__name__]


def happened(
    subject: str, message: AnyMessage, request: str = "", time: str = "2026-01-02T03:04:05.678Z"
) -> HistoryMessage:
    return HistoryMessage(
        subject, Envelope(id="1", operation="o", request=request, schema=1, time=time, message=message)
    )


@pytest.mark.parametrize("type_", typing.get_args(AnyMessage), ids=lambda type_: type_.__name__)
def test_every_message_type_has_a_sentence(type_):
    """A new message without a sentence would break `sluice events`."""
    text = sentence(example(type_))
    assert isinstance(text, str)
    assert text


def test_events_speak_of_pods_by_name_once_it_is_known(make):
    """Users do not know a pod by its uid."""
    names = RequestNames()
    assert names.of(make.request) == "request run1-1"
    names.learn(make.request, make.asked())
    envelope = happened("hist.sluice.binding.x", make.bound(), make.request).envelope
    assert whom((make.request,), "binding", envelope, names) == "default/train"


def test_names_do_not_grow_for_ever(make):
    """`sluice events -f` may run for weeks."""
    names = RequestNames(limit=2)
    for number in range(5):
        names.learn(f"r{number}", make.asked())
    assert [names.of(f"r{number}") for number in range(5)][3:] == ["default/train"] * 2
    assert names.of("r0") == "request r0"


def test_a_granted_share_is_told_with_its_home(make):
    """How much of what, and where."""
    assert places_text(make.shared("a_1", "train")) == (
        "fractional share (4096 MiB, 20 % of the SMs, 30 to 100 % of the time) in 3g.20gb at 4 of GPU-aaaaaaaa"
    )


def test_what_a_node_has_in_trouble_is_told_as_an_event(make):
    """`sluice events` is read after the fact: when the daemon died must be in it, and a calm node must not be noise."""
    ill = make.gpu_report(healthy=False, lost=True, health_message="Xid 79", daemons=(make.daemon(state="down"),))
    assert sentence(make.inventory(ill, warnings=("its journal was lost",))).endswith(
        "fresh; but: GPU 0 is lost: Xid 79; MPS daemon of default (uid 1000) on GPU 0 is down; its journal was lost"
    )
    assert "but" not in sentence(make.inventory(make.gpu_report(daemons=(make.daemon(),))))


def test_a_binding_that_only_warns_says_so(make):
    """`is bound` a second time, without the reason, reads like a mistake."""
    bound = msgspec.structs.replace(make.bound(), revision=2, warnings=("its MPS daemon died",))
    assert sentence(bound) == f"is bound to {make.node}: MIG-1 (update 2); but: its MPS daemon died"


@pytest.mark.parametrize(
    ("after", "words"),
    [((), ""), (("o_1",), ", once another slice is gone"), (("o_1", "o_2"), ", once 2 other slices are gone")],
)
def test_a_place_that_is_booked_ahead_says_what_it_comes_after(make, after, words):
    """A grant that is not carried out yet would read like one that hangs."""
    grant = msgspec.structs.replace(make.grant(), after=after)
    assert sentence(grant) == f"is granted: 3g.20gb at 4 of GPU-aaaaaaaa on {make.node}{words}"


def test_other_sizes_of_a_running_share_are_no_second_grant(make):
    """Its owner would look for a second slice."""
    grant = msgspec.structs.replace(make.grant(make.shared(make.allocation, "train")), revision=2)
    assert sentence(grant).startswith("is adjusted: fractional share (4096 MiB")
