"""Keep the keys of the bus in one Secret, and give the broker and its clients what they need of them; and likewise the
certificates of services and people for gRPC. The objects come with the manifests, empty, and are never created here:
RBAC cannot limit `create` to a name. An outage of the API server does no harm while the certificate is valid."""

import asyncio
import base64
import binascii
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.contracts.rpc_permissions import dns_name
from sluice.runtime import errors, logs
from sluice.runtime.clock import Clock
from sluice.runtime.nats.credentials import Credentials
from sluice.runtime.tls.certificate_authority import USAGES, CredentialsError, KeyPair, kept_pair, new_authority
from sluice.runtime.tls.certificate_files import CertificateError, read_pem_file, trusting
from sluice_pod_watcher.shell.callout.bus_keys import BusKeys, broker_files, fingerprint, renewed, trusted
from sluice_pod_watcher.shell.callout.nkeys import KeyKind, NKey, NotAKeyError
from sluice_pod_watcher.shell.kube.client import MERGE, STRATEGIC_MERGE, KubeApi, KubeError
from sluice_pod_watcher.shell.kube.webhook_certificates import SecretStore
from sluice_pod_watcher.shell.webhook.cert_sources import StoreUnavailableError

REFRESH_S, RETRY_S = 30.0, 2.0  # between two rounds; while something fails
ANNOTATION = "sluice.dev/bus-keys"
"""On the broker's pods: changed with their files, so that they are started again one after another. On the Secret of
these files: the first ones, without which no broker can have started."""
KEYS = "keys.json"
Data = Mapping[str, bytes]
_ATTEMPTS_MAX = 4
AUTHORITY, CA = "sluice-grpc-authority", "sluice-grpc-ca"
SERVICES = tuple(f"sluice-grpc-{caller.value}" for caller in USAGES)
"""For gRPC, one authority, not the bus's, signs the certificates of services and people. Agents make their own."""


@dataclass(frozen=True, slots=True)
class BusObjects:
    """Where everything is. Without a StatefulSet the broker is restarted by someone else."""

    namespace: str
    agents_namespace: str
    keys_secret: str
    server_secret: str
    ca_config_map: str
    statefulset: str
    names: tuple[str, ...]  # of the broker, in its certificate
    ca_file: Path | None = None  # the authorities of a broker that is not ours; None trusts ours


class _Meta(msgspec.Struct):
    name: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


class BusKeeper:
    """One replica's keeper; also the callout's own credentials (`CredentialSource`)."""

    def __init__(self, api: KubeApi, objects: BusObjects, clock: Clock) -> None:
        self._api, self._objects, self._clock = api, objects, clock
        self._store = SecretStore(api, objects.namespace, objects.keys_secret, KEYS, "the keys of the bus")
        self._keys: BusKeys | None = None
        self._issuers: Mapping[str, NKey] = {}
        self._credentials = Credentials()
        self._trouble = ""
        self._log = logs.get("bus keys")
        self.ready = asyncio.Event()  # there are keys, and the broker's Secret has them

    def issuers(self) -> Mapping[str, NKey]:
        return self._issuers

    def curve(self) -> NKey:
        """The key that opens the broker's questions. After `ready`."""
        assert self._keys is not None
        return NKey.from_seed(self._keys.curve, KeyKind.CURVE)

    def current(self) -> Credentials:
        return self._credentials

    async def run(self) -> None:
        """Refresh until cancelled. Raises ServiceError when the Secret was emptied: the keys in use are void."""
        while True:
            await self.refresh()
            await self._clock.sleep(REFRESH_S if self.ready.is_set() and not self._trouble else RETRY_S)

    async def refresh(self) -> None:
        """One round. A failure is logged once, and retried in the next. Raises ServiceError."""
        try:
            keys = await self._kept()
            await self._publish(keys)
            self._use(keys)
            self.ready.set()
            await self._certify()
        except (KubeError, StoreUnavailableError, NotAKeyError, CredentialsError, CertificateError) as error:
            if str(error) != self._trouble:
                self._log.warning("the keys of the bus cannot be refreshed; retrying", why=str(error))
            self._trouble = str(error)
        else:
            self._trouble = ""

    async def _kept(self) -> BusKeys:
        for _ in range(_ATTEMPTS_MAX):
            loaded = await self._store.load()
            kept = _decoded(loaded.text)
            keys = await asyncio.to_thread(renewed, kept, self._objects.names, self._clock.utc())
            if keys is kept:
                return keys
            text = msgspec.json.encode(keys).decode()
            if await self._store.save(text, replaces=loaded.version):
                self._log.info("new keys", generations=len(keys.generations))
                return keys
        raise StoreUnavailableError("the keys of the bus changed at each attempt to renew them")

    async def _publish(self, keys: BusKeys) -> None:
        here, now = self._objects, self._clock.utc()
        bundle = {"ca.crt": trusted(keys, now)}
        published = ""
        for namespace in dict.fromkeys((here.namespace, here.agents_namespace)):
            before = await self._put(f"/api/v1/namespaces/{namespace}/configmaps/{here.ca_config_map}", bundle)
            published = before.get("ca.crt", "") if namespace == here.namespace else published
        files = broker_files(keys, here.names, now, published=published)
        if files is None:
            raise StoreUnavailableError("no certificate of the broker is valid now; is the clock of this node wrong?")
        held, mark = await self._secret(here.server_secret), fingerprint(files)
        first = (held.found.metadata.annotations or {}).get(ANNOTATION, "" if held.found.data else mark)
        await self._write(held, _text({name: text.encode() for name, text in files.items()}), {ANNOTATION: first})
        if here.statefulset:
            await self._restart_broker(mark, first)

    async def _certify(self) -> None:
        """gRPC: the authority first, which only one of several replicas can make."""
        here, now = self._objects, self._clock.utc()
        authority = await self._secret(AUTHORITY)
        pair = authority_of(_bytes(authority), now)
        await self._write(authority, _text({"ca.crt": pair.certificate, "ca.key": pair.key}))
        held = {name: await self._secret(name) for name in SERVICES}
        for name, data in of_services(pair, {name: _bytes(each) for name, each in held.items()}, now).items():
            await self._write(held[name], _text(data))
        for namespace in dict.fromkeys((here.namespace, here.agents_namespace)):
            path = f"/api/v1/namespaces/{namespace}/configmaps/{CA}"
            await self._put(path, {"ca.crt": pair.certificate.decode()})

    async def _held(self, path: str) -> "_Held":
        return _Held(path, _read(await self._api.call("GET", path), _Object, path))

    async def _secret(self, name: str) -> "_Held":
        return await self._held(f"/api/v1/namespaces/{self._objects.namespace}/secrets/{name}")

    async def _put(self, path: str, data: Mapping[str, str]) -> Mapping[str, str]:
        """Write data where it differs; returns what was there."""
        held = await self._held(path)
        await self._write(held, data)
        return held.found.data or {}

    async def _write(self, held: "_Held", data: Mapping[str, str], marks: Mapping[str, str] | None = None) -> None:
        """Make an object hold this and nothing else, unless it has changed since. Raises KubeError."""
        before = held.found.data or {}
        if before != data:
            gone = dict.fromkeys(before.keys() - data.keys())
            about = {"resourceVersion": held.found.metadata.version, "annotations": marks or {}}
            body = {"metadata": about, "data": {**data, **gone}}
            await self._api.call("PATCH", held.path, body=body, content_type=MERGE)
            self._log.info("written", path=held.path)

    async def _restart_broker(self, mark: str, first: str) -> None:
        path = f"/apis/apps/v1/namespaces/{self._objects.namespace}/statefulsets/{self._objects.statefulset}"
        wanted = {"spec": {"template": {"metadata": {"annotations": {ANNOTATION: mark}}}}}
        found: Any = json.loads(await self._api.call("GET", path))
        template = found.get("spec", {}).get("template", {}) if isinstance(found, dict) else {}
        annotations = (template.get("metadata") or {}).get("annotations") or {}
        if annotations.get(ANNOTATION, first) != mark:
            await self._api.call("PATCH", path, body=wanted, content_type=STRATEGIC_MERGE)
            self._log.info("the broker is restarted with its new files", statefulset=self._objects.statefulset)

    def _use(self, keys: BusKeys) -> None:
        if self._keys is not None and (keys.user, keys.curve) != (self._keys.user, self._keys.curve):
            raise errors.ServiceError("the keys of the bus were replaced: starting again with the new ones")
        self._keys, self._issuers = keys, keys.issuers()
        ca_file = self._objects.ca_file
        ours = trusted(keys, self._clock.utc()).encode()
        trusts = ours if ca_file is None else read_pem_file("nats_ca_file", ca_file)
        if trusts != self._credentials.trusts:
            user = NKey.from_seed(keys.user, KeyKind.USER)
            self._credentials = Credentials(
                nkey=user.public,
                sign=lambda challenge: base64.b64encode(user.sign(challenge.encode())),
                tls=trusting("nats_ca_file", ca_file or Path("ca.crt"), trusts),
                trusts=trusts,
            )


class _Held(msgspec.Struct, frozen=True):
    path: str
    found: _Object


def _bytes(held: _Held) -> dict[str, bytes]:
    """What a Secret holds. Raises StoreUnavailableError."""
    try:
        return {name: base64.b64decode(text) for name, text in (held.found.data or {}).items()}
    except binascii.Error as error:
        raise StoreUnavailableError(f"{held.path}: what it holds is no base64") from error


def _text(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(each).decode() for name, each in data.items()}


def _decoded(text: str) -> BusKeys | None:
    return _read(text.encode(), BusKeys, "its content") if text.strip() else None


def _read(data: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except NOT_READABLE as error:
        raise StoreUnavailableError(
            f"the keys of the bus: {where} is damaged ({shorten(str(error), 300)}); empty the Secret, and new ones are "
            "made"
        ) from error


def authority_of(kept: Data, now: dt.datetime) -> KeyPair:
    if kept.get("ca.crt") and kept.get("ca.key"):
        return KeyPair(kept["ca.crt"], kept["ca.key"])
    return new_authority("Sluice gRPC", now)


def of_services(authority: KeyPair, kept: Mapping[str, Data], now: dt.datetime) -> dict[str, Data]:
    """Certificate and key of each service and kind of person, by Secret."""
    made: dict[str, Data] = {}
    for caller, usages in USAGES.items():
        secret = f"sluice-grpc-{caller.value}"
        old = kept.get(secret, {})
        known = KeyPair(old["tls.crt"], old["tls.key"]) if old.get("tls.crt") and old.get("tls.key") else None
        pair = kept_pair(known, authority, (dns_name(caller),), usages, now)
        made[secret] = {"tls.crt": pair.certificate, "tls.key": pair.key}
    return made
