"""A broker that is there and answers nothing: a person is told once, with what to do."""

from structlog.testing import capture_logs

from sluice.runtime import logs
from sluice.runtime.silence import TELL_AFTER_S, Silence


class _Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_cluster_without_quorum_is_told_once_with_what_to_do():
    """Services that wait for ever and say nothing look like services with nothing to do."""
    time = _Time()
    with capture_logs() as lines:
        silence = Silence(logs.get("bus"), time)
        silence.unanswered(connected=True, clustered=True)
        assert (silence.lasts_s, lines) == (0.0, [])
        time.now += TELL_AFTER_S
        for _ in range(3):
            silence.unanswered(connected=True, clustered=True)
        assert silence.lasts_s == TELL_AFTER_S
        time.now += 10
        silence.answered()
        silence.answered()
        assert silence.lasts_s == 0.0
    told, mended = lines
    assert (told["log_level"], told["for_s"]) == ("error", TELL_AFTER_S)
    assert "answers no write" in told["event"]
    assert "two of three" in told["remedy"]
    assert (mended["log_level"], mended["after_s"]) == ("warning", TELL_AFTER_S + 10)


def test_a_connection_that_is_lost_is_not_called_a_silent_broker():
    """That is said by the connection itself; and the time begins anew when it is back."""
    time = _Time()
    with capture_logs() as lines:
        silence = Silence(logs.get("bus"), time)
        silence.unanswered(connected=True, clustered=False)
        time.now += TELL_AFTER_S
        silence.unanswered(connected=False, clustered=False)
        assert silence.lasts_s == 0.0
        silence.unanswered(connected=True, clustered=False)
        assert lines == []
        time.now += TELL_AFTER_S
        silence.unanswered(connected=True, clustered=False)
    assert ["disk" in line["remedy"] for line in lines] == [True]
