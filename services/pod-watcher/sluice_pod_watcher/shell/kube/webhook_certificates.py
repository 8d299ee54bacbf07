"""Keep the webhook's certificates in a Secret, and publish their authorities in the webhook configuration. Both objects
come with the manifests, and are neither created nor deleted here: RBAC cannot limit `create` to a name."""

import base64
import binascii
from typing import Any

import msgspec

from sluice.contracts.bus.codec import NOT_READABLE
from sluice.contracts.reasons import shorten
from sluice.runtime import logs
from sluice_pod_watcher.shell.kube.client import JSON_PATCH, MERGE, KubeApi, KubeError
from sluice_pod_watcher.shell.webhook.cert_rotator import NotPublishedError
from sluice_pod_watcher.shell.webhook.cert_sources import StoredCertificates, StoreUnavailableError

KEY = "certificates.json"
ABSENT, CONFLICT = 404, 409
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class _ObjectMeta(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class _Secret(msgspec.Struct):
    metadata: _ObjectMeta
    data: dict[str, str] | None = None


class SecretStore(msgspec.Struct, frozen=True):
    """A `CertificateStore`: one key of a Secret of all replicas, with its resourceVersion; `what` is for errors."""

    api: KubeApi
    namespace: str
    name: str
    key: str = KEY
    what: str = "the webhook's certificates"

    async def load(self) -> StoredCertificates:
        """The stored text: empty for a newly installed Secret. Raises StoreUnavailableError."""
        try:
            found = msgspec.json.decode(await self.api.call("GET", self._path), type=_Secret)
            text = base64.b64decode((found.data or {}).get(self.key, "")).decode("utf-8", "replace")
        except KubeError as error:
            why = "it comes with the manifests, and may be empty" if error.status == ABSENT else "it cannot be read"
            raise StoreUnavailableError(f"{self._shown}: {why}: {error}") from error
        except (*NOT_READABLE, binascii.Error) as error:
            why = f"the API server's answer is not a Secret: {shorten(str(error), 300)}"
            raise StoreUnavailableError(f"{self._shown}: {why}") from error
        return StoredCertificates(text, found.metadata.resource_version)

    async def save(self, text: str, *, replaces: str) -> bool:
        """Replace the version `replaces`; False if the Secret has changed. Raises StoreUnavailableError."""
        body = {"metadata": {"resourceVersion": replaces}, "data": {self.key: base64.b64encode(text.encode()).decode()}}
        try:
            await self.api.call("PATCH", self._path, body=body, content_type=MERGE)
        except KubeError as error:
            if error.status == CONFLICT:
                return False
            raise StoreUnavailableError(f"{self._shown}: it cannot be written: {error}") from error
        return True

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets/{self.name}"

    @property
    def _shown(self) -> str:
        return f"the Secret {self.namespace}/{self.name} keeps {self.what}"


class _ClientConfig(msgspec.Struct):
    bundle: str = msgspec.field(default="", name="caBundle")


class _Webhook(msgspec.Struct):
    name: str
    client: _ClientConfig = msgspec.field(name="clientConfig")


class _Configuration(msgspec.Struct):
    webhooks: list[_Webhook] | None = None


class ConfiguredBundle(msgspec.Struct, frozen=True):
    """A `BundlePublisher`: the caBundle of every webhook of one MutatingWebhookConfiguration."""

    api: KubeApi
    name: str

    async def publish(self, bundle_pem: str) -> None:
        """Update it where it differs: at most one patch, and none in most rounds. Raises NotPublishedError."""
        wanted = base64.b64encode(bundle_pem.encode()).decode()
        path = f"{CONFIGURATIONS}/{self.name}"
        shown = f"the MutatingWebhookConfiguration {self.name} holds the authorities that API servers trust"
        try:
            found = msgspec.json.decode(await self.api.call("GET", path), type=_Configuration)
            if not found.webhooks:
                raise NotPublishedError(f"{shown}: it has no webhooks, so no pod is reviewed; apply the manifests")
            patch = _patch(found.webhooks, wanted)
            if patch:
                await self.api.call("PATCH", path, body=patch, content_type=JSON_PATCH)
                logs.get("certificate").info("the caBundle was written", configuration=self.name)
        except KubeError as error:
            why = "it comes with the manifests" if error.status == ABSENT else "it cannot be updated"
            raise NotPublishedError(f"{shown}: {why}: {error}") from error
        except NOT_READABLE as error:
            why = f"the API server's answer is not one: {shorten(str(error), 300)}"
            raise NotPublishedError(f"{shown}: {why}") from error


def _patch(webhooks: list[_Webhook], wanted: str) -> list[dict[str, Any]]:
    """A JSON patch that fails when the entries moved meanwhile; the next round makes a new one."""
    patch: list[dict[str, Any]] = []
    for index, webhook in enumerate(webhooks):
        if webhook.client.bundle != wanted:
            at = f"/webhooks/{index}"
            patch.append({"op": "test", "path": f"{at}/name", "value": webhook.name})
            patch.append({"op": "add", "path": f"{at}/clientConfig/caBundle", "value": wanted})
    return patch
