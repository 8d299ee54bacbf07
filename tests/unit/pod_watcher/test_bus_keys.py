"""The keys of the bus over the years: nothing that runs is cut off, and the broker is restarted rarely."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice_pod_watcher.shell.callout.bus_keys import ROTATION, BusKeys, broker_files, fingerprint, renewed, trusted
from sluice_pod_watcher.shell.callout.nkeys import KeyKind, NKey, NotAKeyError

NAMES = ("sluice-nats.sluice-system.svc", "*.sluice-nats-servers.sluice-system.svc")
START = datetime(2026, 11, 29, tzinfo=UTC)
OLD = Path(__file__).parents[2] / "data" / "keys" / "bus-of-ba0d82fa.json"
"""Made at START by the code of that commit."""
LATE = timedelta(minutes=10)
"""A kubelet shows changed files after a minute or two."""


def test_over_three_years_every_client_trusts_the_broker_and_every_issuer_is_known():
    """Clients and brokers are some minutes behind the keeper, in both directions."""
    keys: BusKeys | None = None
    published, running, restarts, issuers = "", {}, 0, set()
    now = START
    while now < START + timedelta(days=3 * 365):
        keys = renewed(keys, NAMES, now)
        bundle = trusted(keys, now)
        files = broker_files(keys, NAMES, now, published=published)
        assert files is not None
        if running and files["tls.crt"] != running["tls.crt"]:
            authority = files["ca.crt"].replace(running["ca.crt"], "")
            assert not authority, "a server that has not been restarted yet would not let its new peer in"
        restarts += bool(running) and fingerprint(files) != fingerprint(running)
        for behind in (published or bundle, bundle):
            leaf = x509.load_pem_x509_certificate(files["tls.crt"].encode())
            signers = x509.load_pem_x509_certificates(behind.encode())
            (signer,) = [each for each in signers if each.subject == leaf.issuer]
            leaf.verify_directly_issued_by(signer)
            assert signer.not_valid_after_utc == leaf.not_valid_after_utc, "it signs nothing else"
            assert leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc - timedelta(days=1)
        issuer = files["keys.conf"].split()[1]
        assert issuer in keys.issuers()
        issuers.add(issuer)
        running, published = files, bundle
        now += timedelta(hours=24) if keys.tls[-1].made + timedelta(hours=3) < now else LATE
    assert len(issuers) == 4
    assert restarts <= 3 * 3


def test_keys_that_an_older_version_made_stay_until_they_are_due_and_are_trusted_until_they_end():
    """An upgrade restarts no broker; clients that know the old authority alone follow to the next."""
    old = msgspec.json.decode(OLD.read_bytes(), type=BusKeys)
    due = START + ROTATION.validity - ROTATION.renew_before
    assert renewed(old, NAMES, due - LATE) is old
    keys = renewed(old, NAMES, due)
    assert (keys.user, keys.curve, keys.generations[:-1]) == (old.user, old.curve, old.generations)
    before, at_once, later = (
        broker_files(each, NAMES, when, published=trusted(each, when))
        for each, when in ((old, due), (keys, due), (keys, due + ROTATION.overlap))
    )
    assert fingerprint(before) == "bb2b76dfd77856aa", "what that version says of these files"
    assert at_once == {**before, "ca.crt": trusted(keys, due)}
    assert (later["tls.crt"], later["ca.crt"]) == (keys.tls[-1].certificate_pem, trusted(keys, due))
    assert trusted(keys, START + ROTATION.validity) == keys.tls[-1].authority_pem


def test_what_the_broker_gets_holds_no_seed():
    """Its Secret is mounted where clients connect; who has the issuer's seed has all rights."""
    keys = renewed(None, NAMES, START)
    files = broker_files(keys, NAMES, START, published="")
    seeds = {keys.user, keys.curve, *(each.issuer for each in keys.generations)}
    assert not [seed for seed in seeds for text in files.values() if seed in text]
    assert ROTATION.overlap >= timedelta(hours=1)


@pytest.mark.parametrize("kind", KeyKind)
def test_keys_are_written_as_nats_writes_them(kind):
    """Other tools read them; and a mistyped one is refused, not used."""
    key = NKey.make(kind)
    assert key.public[0] == {"ACCOUNT": "A", "USER": "U", "CURVE": "X"}[kind.name]
    assert key.seed[:2] == "S" + key.public[0]
    assert NKey.from_seed(key.seed, kind) == key
    mistyped = key.seed[:9] + ("A" if key.seed[9] != "A" else "B") + key.seed[10:]
    for broken in (key.seed[:-1], mistyped, key.public, "", "s p"):
        with pytest.raises(NotAKeyError):
            NKey.from_seed(broken, kind)
    assert key.seed not in repr(key)


def test_a_known_key_has_the_public_one_that_nats_gives_it():
    """From the documentation of github.com/nats-io/nkeys."""
    seed = "SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY"
    assert NKey.from_seed(seed, KeyKind.USER).public == "UD466L6EBCM3YY5HEGHJANNTN4LSKTSUXTH7RILHCKEQMQHTBNLHJJXT"
