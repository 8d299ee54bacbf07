"""A broker that is connected and answers nothing: reported once with a hint, and not after a pause of our own."""

import pytest
from factories.broker.bus_rigs import place, raw
from factories.broker.nats_server import Broker
from structlog.testing import capture_logs

from sluice.contracts.bus.events import Stream
from sluice.runtime import logs
from sluice.runtime.nats.broker_liveness import CHECK_EVERY_S, LATE_MAX_S, REPORT_AFTER_S, AwakeDeadline, BrokerLiveness


class _Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _runs(time: _Time, silence: BrokerLiveness, for_s: float) -> None:
    ends = time.now + for_s
    while time.now < ends:
        time.now = min(ends, time.now + CHECK_EVERY_S)
        silence.look()


async def test_a_cluster_without_quorum_is_told_once_with_what_to_do():
    """Services that wait in silence look like services with nothing to do."""
    time = _Time()
    with capture_logs() as lines:
        silence = BrokerLiveness(logs.get("bus"), time)
        silence.unanswered(connected=True, clustered=True)
        assert (silence.lasts_s, lines) == (0.0, [])
        _runs(time, silence, REPORT_AFTER_S)
        for _ in range(3):
            silence.unanswered(connected=True, clustered=True)
        assert silence.lasts_s == REPORT_AFTER_S
        time.now += 10
        silence.answered()
        silence.answered()
        assert silence.lasts_s == 0.0
    told, mended = lines
    assert (told["log_level"], told["for_s"]) == ("error", REPORT_AFTER_S)
    assert "answers no write" in told["event"]
    assert "two of three" in told["remedy"]
    assert (mended["log_level"], mended["after_s"]) == ("warning", REPORT_AFTER_S + 10)


async def test_a_connection_that_is_lost_is_not_called_a_silent_broker():
    """The connection itself reports that; and the time restarts when it is back."""
    time = _Time()
    with capture_logs() as lines:
        silence = BrokerLiveness(logs.get("bus"), time)
        silence.unanswered(connected=True, clustered=False)
        _runs(time, silence, REPORT_AFTER_S)
        silence.unanswered(connected=False, clustered=False)
        assert silence.lasts_s == 0.0
        silence.unanswered(connected=True, clustered=False)
        assert lines == []
        _runs(time, silence, REPORT_AFTER_S)
        silence.unanswered(connected=True, clustered=False)
    assert ["disk" in line["remedy"] for line in lines] == [True]


async def test_a_process_that_was_stopped_does_not_blame_the_broker():
    """Otherwise a person would check a healthy broker; the whole deadline restarts when the process runs again."""
    time = _Time()
    with capture_logs() as lines:
        silence = BrokerLiveness(logs.get("bus"), time)
        silence.unanswered(connected=True, clustered=False)
        time.now += 60.0
        silence.unanswered(connected=True, clustered=False)
        assert (silence.lasts_s, lines) == (0.0, [])
        _runs(time, silence, REPORT_AFTER_S - 0.1)
        silence.unanswered(connected=True, clustered=False)
        assert lines == []
        _runs(time, silence, 0.1)
        silence.unanswered(connected=True, clustered=False)
    assert [line["for_s"] for line in lines] == [REPORT_AFTER_S]


def test_time_in_which_the_process_was_paused_is_not_silence():
    """A late check extends the deadline; one that is far too late restarts it."""
    deadline = AwakeDeadline(9.0, 100.0)
    assert deadline.due == 103.0
    assert not deadline.is_over(103.5)
    assert deadline.due == 106.5
    assert not deadline.is_over(106.5)
    assert deadline.due == 109.5
    assert not deadline.is_over(109.4)
    assert deadline.due == 109.5
    assert deadline.is_over(109.5)

    deadline = AwakeDeadline(4.0, 100.0)
    late = deadline.due + LATE_MAX_S + 0.01
    assert not deadline.is_over(late)
    assert (deadline.began_at, deadline.due) == (late, late + CHECK_EVERY_S)
    assert [deadline.is_over(late + seconds) for seconds in (1.0, 2.0, 3.0, 4.0)] == [False, False, False, True]


async def test_what_is_asked_while_the_broker_is_away_is_not_kept(tmp_path):
    """Each unsent message is retried every few seconds, and each try would stay in memory."""
    async with Broker(tmp_path / "nats") as broker, raw(broker.url) as connection:
        with pytest.raises(TimeoutError):
            await connection.request("without.listener", timeout_s=10.0)
        (server,) = broker.servers
        await server.kill()
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await connection.request(f"$JS.API.DIRECT.GET.{Stream.STATE}.{place('a').subject}", timeout_s=0.2)
        assert not connection._client._resp_map
