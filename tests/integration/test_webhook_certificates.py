"""A webhook's certificate over its years: created, shared, published first, renewed in time, never lost."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from factories.cluster.memory_store import MemoryStore

from sluice.runtime.prometheus import metrics
from sluice_pod_watcher.shell.metrics import CERTIFICATE_ENDS, WEBHOOK_READY
from sluice_pod_watcher.shell.webhook.cert_generations import CertificateConfig, Generations, make_generation, with_new
from sluice_pod_watcher.shell.webhook.cert_rotator import (
    REFRESH_S,
    RETRY_S,
    CertificateRotator,
    NotPublishedError,
    UnusableCertificateError,
    new_context,
    show,
)
from sluice_pod_watcher.shell.webhook.cert_sources import (
    MountedCertificates,
    RotatingCertificates,
    StoreUnavailableError,
)

NAME = "sluice-webhook.sluice-system.svc"
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RULES = CertificateConfig()


class Wall:
    """A wall clock set by the test. TLS itself uses the machine's: handshakes happen now."""

    def __init__(self, now=START):
        self.now = now
        self.slept = []

    def utc(self):
        return self.now

    def monotonic(self):
        return (self.now - START).total_seconds()

    async def sleep(self, duration_s):
        """Time passes; after a thousand rounds the test ends."""
        self.slept.append(duration_s)
        if len(self.slept) == 1000:
            raise asyncio.CancelledError
        self.now += timedelta(seconds=duration_s)


class Cluster:
    """The authorities that the API servers trust, and whether they can be updated now."""

    def __init__(self):
        self.bundle = ""
        self.told = 0
        self.fails = False

    async def publish(self, bundle_pem):
        if self.fails:
            raise NotPublishedError("the API server does not answer")
        self.told += 1
        self.bundle = bundle_pem


class Failing(MemoryStore):
    """A store with a switch."""

    fails = False

    async def load(self):
        if self.fails:
            raise StoreUnavailableError("the Secret cannot be read")
        return await super().load()


def keeper_of(store, cluster, wall, names=(NAME,)):
    """One replica of the webhook, and the context that it shows."""
    context = new_context()
    return CertificateRotator(context, RotatingCertificates(store, names, RULES), cluster, wall), context


def presented(context, bundle, name=NAME):
    """The certificate that a client sees which trusts `bundle` strictly and expects `name`. Raises SSLError."""
    client = ssl.create_default_context(cadata=bundle)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one.getpeercert(binary_form=True)


async def test_a_fresh_certificate_is_taken_by_a_strict_client_for_its_names_only():
    """API servers verify; with a faulty certificate a cluster creates no pod."""
    cluster, wall = Cluster(), Wall(datetime.now(UTC))
    keeper, context = keeper_of(MemoryStore(), cluster, wall, (NAME, "127.0.0.1"))
    await keeper.refresh()
    assert keeper.why_not_ready() == ""
    assert presented(context, cluster.bundle)
    assert presented(context, cluster.bundle, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        presented(context, cluster.bundle, "kubernetes.default.svc")


async def test_replicas_show_certificates_that_one_bundle_covers():
    """Both are behind one Service, and the API server has one caBundle."""
    store, cluster, wall = MemoryStore(), Cluster(), Wall(datetime.now(UTC))
    replicas = [keeper_of(store, cluster, wall) for _ in range(5)]
    await asyncio.gather(*(keeper.refresh() for keeper, _ in replicas))
    assert len({presented(context, cluster.bundle) for _, context in replicas}) == 1


async def test_over_a_year_no_hour_passes_without_a_trusted_certificate():
    """The shown certificate must be trusted by the cluster and not expired, at each hour and for each replica."""
    store, cluster, wall = MemoryStore(), Cluster(), Wall()
    replicas = [keeper_of(store, cluster, wall)[0] for _ in range(2)]
    seen = set()
    for hour in range(366 * 24):
        wall.now = START + timedelta(hours=hour)
        trusted = cluster.bundle
        for keeper in replicas:
            await keeper.refresh()
            shown = keeper._shown
            kept = msgspec.json.decode((await store.load()).text, type=Generations).generations
            (generation,) = (each for each in kept if each.certificate_pem.encode() == shown.certificate_pem)
            seen.add(shown.certificate_pem)
            assert generation.expires - wall.now > timedelta(days=29)
            if hour:
                assert generation.authority_pem in trusted, "presented before a client could know its authority"
    assert 6 <= len(seen) <= 8
    assert cluster.bundle.count("BEGIN CERTIFICATE") <= 2


async def test_an_outage_of_store_or_cluster_leaves_the_certificate_in_use():
    """A failed renewal is retried for a month before it hurts."""
    store, cluster, wall = Failing(), Cluster(), Wall()
    keeper, _ = keeper_of(store, cluster, wall)
    await keeper.refresh()
    before = keeper._shown
    store.fails = True
    wall.now += timedelta(days=80)
    await keeper.refresh()
    assert keeper._shown is before
    assert keeper.why_not_ready() == ""
    wall.now += timedelta(days=11)
    assert keeper.why_not_ready() == "the certificate has expired: the Secret cannot be read"
    store.fails = False
    await keeper.refresh()
    assert keeper.why_not_ready() == ""


async def test_a_certificate_of_an_unpublished_authority_is_not_presented_yet():
    """Else every pod creation fails until its authority is published."""
    store, cluster, wall = MemoryStore(), Cluster(), Wall()
    keeper, _ = keeper_of(store, cluster, wall)
    await keeper.refresh()
    first = keeper._shown.certificate_pem
    cluster.fails = True
    wall.now += timedelta(days=61)
    for _ in range(5):
        await keeper.refresh()
        wall.now += timedelta(hours=1)
    assert keeper._shown.certificate_pem == first
    cluster.fails = False
    await keeper.refresh()
    assert keeper._shown.certificate_pem == first
    await keeper.refresh()
    assert keeper._shown.certificate_pem != first


async def test_a_new_certificate_waits_until_every_api_server_had_time_to_learn_its_authority():
    """Several API servers load a new caBundle one after the other."""
    cluster, wall = Cluster(), Wall()
    keeper, _ = keeper_of(MemoryStore(), cluster, wall)
    await keeper.refresh()
    first = keeper._shown.certificate_pem
    wall.now += timedelta(days=61)
    for _ in range(60):
        await keeper.refresh()
        assert keeper._shown.certificate_pem == first
        wall.now += timedelta(minutes=1)
    assert cluster.bundle.count("BEGIN CERTIFICATE") == 2
    await keeper.refresh()
    assert keeper._shown.certificate_pem != first


@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(days=70), timedelta(days=400)])
async def test_a_clock_that_was_ahead_leaves_no_certificate_that_is_not_valid_yet(ahead):
    """A node booted with a wrong clock that was then corrected: no GPU pod could be created until that day."""
    store, cluster, wall, wrong = MemoryStore(), Cluster(), Wall(datetime.now(UTC)), Wall()
    wrong.now = wall.now + ahead
    await keeper_of(store, cluster, wrong)[0].refresh()
    keeper, context = keeper_of(store, cluster, wall)
    for _ in range(3):
        await keeper.refresh()
        assert presented(context, cluster.bundle)
        wall.now += timedelta(minutes=1)


@pytest.mark.parametrize("ahead", [timedelta(days=70), timedelta(days=400)])
async def test_two_replicas_with_different_clocks_do_not_make_certificates_without_end(ahead):
    """Each would reject the other's every minute, and publish new authorities to the API servers."""
    store, cluster, right, wrong = MemoryStore(), Cluster(), Wall(), Wall(START + ahead)
    replicas = [keeper_of(store, cluster, right)[0], keeper_of(store, cluster, wrong)[0]]
    seen = set()
    for minute in range(20):
        right.now, wrong.now = START + timedelta(minutes=minute), START + ahead + timedelta(minutes=minute)
        for keeper in replicas:
            await keeper.refresh()
        seen.add((await store.load()).version)
    assert len(seen) <= 2


async def test_it_is_not_ready_until_the_cluster_knows_whom_to_trust():
    """A rollout waits before it goes on to the next replica."""
    cluster, wall = Cluster(), Wall()
    cluster.fails = True
    keeper, _ = keeper_of(MemoryStore(), cluster, wall)
    assert keeper.why_not_ready() == "there is no certificate yet: not requested yet"
    await keeper.refresh()
    assert keeper.why_not_ready() == ("the certificate's authority is not published: the API server does not answer")


async def test_an_operator_sees_that_no_client_can_ask_it_and_when_its_certificate_ends():
    """A failed renewal is logged once; a month later no GPU pod could be created, without an alert."""
    store, cluster, wall = Failing(), Cluster(), Wall()
    cluster.fails = True
    keeper, _ = keeper_of(store, cluster, wall)
    shown = lambda: {  # noqa: E731
        each: metrics.PROCESS.samples().get(each) for each in (WEBHOOK_READY, CERTIFICATE_ENDS)
    }
    assert shown() == {WEBHOOK_READY: None, CERTIFICATE_ENDS: None}
    told = []

    async def sleep(_duration_s):
        told.append(shown())
        if len(told) == 2:
            raise asyncio.CancelledError
        cluster.fails = False

    wall.sleep = sleep
    with pytest.raises(asyncio.CancelledError):
        await keeper.run()
    ends = {(): (START + RULES.validity).timestamp()}
    assert told == [{WEBHOOK_READY: {(): ready}, CERTIFICATE_ENDS: ends} for ready in (0, 1)]


async def test_rounds_come_often_while_it_is_not_ready_and_then_each_minute():
    """A start is quick, and a year of rounds costs the API server little."""
    cluster, wall = Cluster(), Wall()
    cluster.fails = True
    keeper, _ = keeper_of(MemoryStore(), cluster, wall)
    with pytest.raises(asyncio.CancelledError):
        await keeper.run()
    assert set(wall.slept) == {RETRY_S}
    wall.slept.clear()
    cluster.fails = False
    with pytest.raises(asyncio.CancelledError):
        await keeper.run()
    assert set(wall.slept) == {REFRESH_S}
    assert cluster.told == 1000  # each round, because the caBundle may be overwritten


async def test_an_empty_store_is_filled_and_a_damaged_one_is_told_of():
    """A Secret is shipped empty; a person must fix unreadable content."""
    wall = Wall()
    store = MemoryStore()
    keeper, _ = keeper_of(store, Cluster(), wall)
    await keeper.refresh()
    assert keeper.why_not_ready() == ""
    assert await store.save("{", replaces=(await store.load()).version)
    again, _ = keeper_of(store, Cluster(), wall)
    await again.refresh()
    assert again.why_not_ready().startswith(
        "there is no certificate yet: the stored certificates are damaged; empty the Secret, and new ones are made ("
    )


async def test_other_names_make_a_new_certificate_at_once():
    """A renamed Service must be reachable under its new name."""
    store, cluster, wall = MemoryStore(), Cluster(), Wall(datetime.now(UTC))
    keeper, _ = keeper_of(store, cluster, wall)
    await keeper.refresh()
    renamed, context = keeper_of(store, cluster, wall, ("new.example",))
    await renamed.refresh()
    assert presented(context, cluster.bundle, "new.example")


def test_rules_that_would_leave_a_gap_are_refused():
    """A certificate that expires before its successor is shown is an outage with a date."""
    with pytest.raises(ValueError, match="each must be less than the next"):
        CertificateConfig(overlap=timedelta(days=31))
    with pytest.raises(ValueError, match="at least one name"):
        make_generation((), START, RULES.validity)


# -- mounted certificates -----------------------------------------------------------------------------------------


async def test_a_mounted_certificate_is_shown_and_followed(tmp_path):
    """cert-manager renews the files; a webhook that reads them once serves an expired certificate."""
    cluster, wall, context = Cluster(), Wall(datetime.now(UTC)), new_context()
    keeper = CertificateRotator(context, MountedCertificates(tmp_path), cluster, wall)
    await keeper.refresh()
    assert keeper.why_not_ready() == f"there is no certificate yet: {tmp_path / 'tls.crt'}: No such file or directory"
    for _ in range(2):
        made = make_generation((NAME,), wall.now, RULES.validity)
        (tmp_path / "tls.crt").write_text(made.certificate_pem)
        (tmp_path / "tls.key").write_text(made.key_pem)
        await keeper.refresh()
        assert presented(context, made.authority_pem)
        assert keeper.why_not_ready() == ""
    assert cluster.told == 0
    last = made
    (tmp_path / "tls.key").write_text(make_generation((NAME,), wall.now, RULES.validity).key_pem)
    await keeper.refresh()
    assert presented(context, last.authority_pem), "half of a new pair is not presented"
    (tmp_path / "tls.crt").write_text("nothing")
    await keeper.refresh()
    assert presented(context, last.authority_pem)


def test_an_unusable_pair_leaves_what_was_shown():
    """A file that is still being written does not end the service."""
    context = new_context()
    good, other = (make_generation((NAME,), datetime.now(UTC), RULES.validity) for _ in range(2))
    show(context, good.certificate_pem.encode(), good.key_pem.encode())
    with pytest.raises(UnusableCertificateError, match="cannot be used"):
        show(context, other.certificate_pem.encode(), good.key_pem.encode())
    with pytest.raises(UnusableCertificateError, match="cannot be used"):
        show(context, b"", b"")
    assert presented(context, good.authority_pem)


def test_what_is_kept_has_a_bound():
    """A name that changes at each start would fill the Secret."""
    kept = ()
    made = make_generation((NAME,), START, RULES.validity)
    for _ in range(20):
        kept = with_new(kept, made, START).generations
    assert len(kept) == 8
