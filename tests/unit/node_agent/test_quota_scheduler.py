"""Tokens of the SMs of a home: which tenant gets one, when it is taken away, and what is charged for it."""

from factories.gpus.token_scheduler import EPOCH, HELLO, QuotaBench

from sluice_node_agent.core.quota import events as quota
from sluice_node_agent.core.quota.wire import Ask, Grant, Quota, Refused, Stop


def _granted(connection, token, answers, length_ms=10.0):
    return quota.Send(connection, Grant(token, round(length_ms * 1000), answers))


def _quota(request, limit, *, is_news=False):
    return Quota(100_000, 10_000, request, limit, 0, EPOCH, 500_000, is_news=is_news)


def _two(first=(30, 100, 100), second=(70, 100, 100)):
    bench = QuotaBench(a=first, b=second)
    bench.process(1, "a")
    bench.process(2, "b")
    return bench


def test_a_process_is_told_its_quota_and_gets_a_token_at_once():
    """A process that is alone waits, or does not know how long its turn is."""
    bench = QuotaBench(a=(30, 60, 100))
    assert bench.tell(quota.ConnectionOpened(1, "a")) == []
    assert bench.tell(quota.MessageReceived(1, HELLO)) == [quota.Send(1, _quota(300_000, 600_000))]
    assert bench.ask(1, 5) == [_granted(1, 1, 1), quota.WakeAt(15_000 + 200_000)]


def test_who_is_alone_goes_on_without_a_pause():
    """A process without competition synchronises at every token."""
    bench = QuotaBench(a=(30, 100, 100))
    bench.process(1, "a")
    bench.ask(1)
    assert bench.ask(1, 9, ahead_of=1) == [_granted(1, 2, 2), quota.WakeAt(220_000)]
    assert bench.ask(1, 19, ahead_of=2) == [_granted(1, 3, 3), quota.WakeAt(230_000)]
    assert bench.give_back(1, 3, 25) == [quota.WakeAt(None)]


def test_the_next_token_is_for_who_is_furthest_below_its_request():
    """A greedy tenant keeps the device though another one waits."""
    bench = _two()
    bench.ask(1)
    assert bench.ask(2, 1) == []
    assert bench.ask(1, 9, ahead_of=1) == []  # b's turn comes first
    assert bench.give_back(1, 1, 10) == [_granted(2, 2, 2), quota.WakeAt(220_000)]


def test_only_one_token_is_had_ahead():
    """A process that asks ahead again and again takes the device for good."""
    bench = QuotaBench(a=(30, 100, 100))
    bench.process(1, "a")
    bench.ask(1)
    bench.ask(1, 1, ahead_of=1)
    assert bench.ask(1, 2, ahead_of=2) == [quota.WakeAt(10_000)]
    assert bench.tell(quota.TimerDue(), 10) == [_granted(1, 3, 3), quota.WakeAt(230_000)]


def test_room_is_kept_for_who_is_owed_more():
    """A wide tenant never runs, for narrow ones always fit."""
    bench = QuotaBench(wide=(50, 100, 100), a=(25, 100, 50), b=(25, 100, 50))
    for number, name in enumerate(("wide", "a", "b"), 1):
        bench.process(number, name)
    bench.ask(2)
    bench.ask(1, 1)
    assert bench.ask(3, 2) == [_granted(3, 2, 3)]  # a's end would not be enough for it before a window has passed
    bench.give_back(2, 1, 10)
    assert bench.ask(2, 10) == []
    assert bench.give_back(3, 2, 12) == [_granted(1, 3, 2), quota.WakeAt(222_000)]


def test_a_limit_holds_over_every_window():
    """A tenant uses more than its limit of some window, or less although it wants it."""
    bench = QuotaBench(a=(5, 15, 100))
    bench.process(1, "a")
    assert bench.ask(1) == [_granted(1, 1, 1), quota.WakeAt(210_000)]
    assert bench.ask(1, 9, ahead_of=1) == [_granted(1, 2, 2, 5), quota.WakeAt(215_000)]
    assert bench.ask(1, 14, ahead_of=2) == []
    assert bench.give_back(1, 2, 15) == [quota.WakeAt(100_000)]
    assert bench.tell(quota.TimerDue(), 100) == [_granted(1, 3, 3), quota.WakeAt(310_000)]


def test_a_limit_below_the_shortest_token_is_kept_over_a_longer_window():
    """A tenant with a very small limit never runs at all."""
    bench = QuotaBench(a=(0, 100, 100))
    bench.tell(quota.TenantSet("a", 1_000, 5_000, 100))
    bench.process(1, "a")
    assert bench.ask(1) == [_granted(1, 1, 1, 1), quota.WakeAt(201_000)]
    bench.give_back(1, 1, 1)
    assert bench.ask(1, 1) == [quota.WakeAt(200_000)]  # 1 ms of 200 ms are 0.5 %


def test_what_a_long_kernel_took_from_others_is_paid_back():
    """A tenant with long kernels gets more than its share, since no kernel can be interrupted."""
    bench = _two(first=(50, 100, 100), second=(50, 100, 100))
    bench.ask(1)
    bench.ask(2, 1)
    assert bench.give_back(1, 1, 510) == [_granted(2, 2, 2), quota.WakeAt(720_000)]  # 500 ms too long
    bench.ask(1, 510)
    token, ends, told = 2, 520, bench.ask(2, 519, ahead_of=2)
    while told[0] == _granted(2, token + 1, token + 2):
        token, ends = token + 1, ends + 10
        told = bench.ask(2, ends - 1, ahead_of=token)
    assert (told[0], ends) == (quota.Send(2, Stop(token)), 920)
    assert bench.give_back(2, token, 919)[0] == _granted(1, token + 1, 3)


def test_what_no_other_tenant_wanted_costs_nothing():
    """A tenant waits for its own past although the device was idle then."""
    bench = _two()
    bench.ask(1)
    bench.give_back(1, 1, 190)  # alone: 180 ms too long
    bench.ask(2, 191)
    bench.ask(1, 192)
    assert bench.give_back(2, 2, 201) == [_granted(1, 3, 3), quota.WakeAt(411_000)]
    usage = bench.scheduler.usage(201_000, {})
    assert (usage["a"].overrun_us, usage["a"].late, usage["b"].overrun_us) == (180_000, 1, 0)


def test_others_go_on_beside_a_token_that_is_never_given_back():
    """A process that hangs keeps all of its neighbours from the device."""
    bench = _two()
    bench.ask(1)
    assert bench.ask(2, 1) == []
    assert bench.tell(quota.TimerDue(), 210) == [_granted(2, 2, 2), quota.WakeAt(420_000)]
    assert bench.scheduler.usage(210_000, {})["a"].stalls == 1
    assert bench.tell(quota.MessageReceived(1, Ask(9, 0, 0)), 211) == []  # nothing more before it has given back
    assert bench.give_back(1, 1, 212) == []
    assert bench.give_back(2, 2, 222) == [_granted(1, 3, 9), quota.WakeAt(432_000)]


def test_a_changed_quota_is_told_and_holds():
    """`sluice adjust` is felt only when the pod is started again."""
    bench = QuotaBench(a=(30, 100, 100))
    bench.process(1, "a")
    bench.ask(1)
    assert bench.tell(bench.size("a", 30, 100, 100), 1) == []
    told = bench.tell(bench.size("a", 5, 5, 100), 8)
    assert told == [quota.Send(1, _quota(50_000, 50_000, is_news=True)), quota.Send(1, Stop(1)), quota.WakeAt(208_000)]


def test_a_tenant_that_goes_leaves_its_token():
    """A share that was taken back goes on computing by the clock of its neighbours."""
    bench = _two()
    bench.ask(1)
    bench.ask(2, 1)
    assert bench.tell(quota.TenantRemoved("a"), 4) == [
        quota.Send(1, Refused(4)),
        quota.Disconnect(1, "its share is not in the home any more"),
        _granted(2, 2, 2),
        quota.WakeAt(214_000),
    ]


def test_who_does_not_say_hello_first_is_cut_off():
    bench = QuotaBench(a=(30, 100, 100))
    bench.tell(quota.ConnectionOpened(1, "a"))
    assert bench.tell(quota.MessageReceived(1, Ask(1, 0, 0))) == [quota.Disconnect(1, "it says Ask before hello")]
    assert bench.tell(quota.MessageReceived(1, Ask(2, 0, 0))) == []


def test_strangers_and_crowds_are_refused():
    """A pod that opens connections without end takes the agent's memory."""
    bench = QuotaBench(a=(30, 100, 100))
    most = quota.QuotaConfig().connections_max
    for number in range(most):
        bench.process(number + 1, "a")
    assert bench.tell(quota.ConnectionOpened(100, "a")) == [
        quota.Send(100, Refused(3)),
        quota.Disconnect(100, f"'a' has {most} connections"),
    ]
    assert bench.tell(quota.ConnectionOpened(101, "b")) == [
        quota.Send(101, Refused(2)),
        quota.Disconnect(101, "there is no tenant 'b'"),
    ]
