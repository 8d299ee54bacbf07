"""Logs: one object per line with service, run and trace; never a reason to stop."""

import io
import json
import logging
import os

import pytest
import structlog

from sluice.runtime import logs
from sluice.runtime.logs import BURST, PER_S, VALUE_MAX, RateLimit
from sluice.runtime.tracing import request_traces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def into(stream, form="json"):
    logs.configure(service="allocator", run="run1", level="info", form=form, stream=stream)
    return stream


@pytest.fixture
def read():
    """Configures logging: what was logged since."""
    stream = into(io.StringIO())
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_each_line_says_who_and_which_run(read):
    """Lines of many processes can be told apart in one place."""
    logs.get("queue", node="gpu-1").info("granted", allocation="a1", places=(1, 2))
    (line,) = read()
    assert line.pop("timestamp").endswith("Z")
    said = {"level": "info", "event": "granted", "part": "queue", "service": "allocator", "run": "run1"}
    assert line == said | {"node": "gpu-1", "allocation": "a1", "places": [1, 2]}


def test_what_another_process_wrote_makes_no_endless_line_nor_endless_lines(read):
    """One agent would fill the disks of every reader's node."""
    now = [0.0]
    log = logs.get("bus")
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, RateLimit):
            processor._clock = lambda: now[0]
    log.info("read", text="x" * 100_000, parts=("y" * 100_000,))
    for at in range(1_000):
        log.error("set aside", sequence=at)
    log.warning("another kind")
    now[0] = 1 / PER_S
    log.error("set aside", sequence=1_000)
    first, *errors, other, last = read()
    assert max(len(first["text"]), len(first["parts"])) < VALUE_MAX + 50
    assert first["text"].startswith("xxx")
    assert [line["sequence"] for line in errors] == list(range(BURST))
    assert (other["event"], last["sequence"], last["left_out"]) == ("another kind", 1_000, 1_000 - BURST)


def test_a_line_inside_a_span_can_be_found_from_its_trace(read):
    with request_traces.within(f"00-{TRACE}-00f067aa0ba902b7-01"):
        logs.get("queue").warning("late")
    assert (read()[0]["trace_id"], read()[0]["span_id"]) == (TRACE, "00f067aa0ba902b7")


def test_lines_of_libraries_come_out_the_same_way(read):
    """The NATS client's errors are not lost, nor in another format."""
    logging.getLogger("nats.aio.client").warning("slow consumer on %s", "sluice.>")
    (line,) = read()
    assert (line["part"], line["service"]) == ("nats.aio.client", "allocator")
    assert line["event"] == "slow consumer on sluice.>"


def test_what_json_cannot_say_is_still_logged(read):
    logs.get("x").info("odd", value=object, keys={(1, 2): 3})
    assert read()[0]["event"] == "odd"
    assert "(1, 2)" in json.dumps(read()[0]["keys"])


def test_a_file_whose_name_is_no_text_is_still_named(read):
    """A file's odd name, in a watched folder or in a settings path, would end a service."""
    name = os.fsdecode(b"caf\xe9.pem")
    logs.get("x").warning("left alone", path=name)
    logs.get("x").error(f"nats_ca_file: {name} cannot be read")
    first, second = read()
    assert (first["path"], second["event"]) == ("caf\\udce9.pem", "nats_ca_file: caf\\udce9.pem cannot be read")


def test_text_is_for_people():
    stream = into(io.StringIO(), "text")
    logs.get("x").info("granted", allocation="a1")
    assert "granted" in stream.getvalue()
    assert "allocation" in stream.getvalue()


def test_a_service_outlives_the_reader_of_its_logs():
    """When the other end of stderr is gone, work goes on."""

    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    into(Broken())
    logs.get("x").info("granted")
    logging.getLogger("nats").warning("hello")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_variable(form):
    stream = into(io.StringIO(), form)

    def log_in(password):
        raise ValueError(f"{len(password)} letters")

    try:
        log_in("drowssap-dekram"[::-1])
    except ValueError as error:
        logs.get("bus").error("failed", exc_info=error)
        logging.getLogger("nats").exception("failed too")
    said = stream.getvalue()
    assert said.count("15 letters") >= 2
    assert "marked-password" not in said
