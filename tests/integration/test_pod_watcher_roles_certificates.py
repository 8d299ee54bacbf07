"""The webhook's certificates at the API server: kept in a Secret, published in the webhook configuration."""

import base64

import pytest
from factories.cluster.cluster_system import install
from factories.cluster.kubernetes import Cluster
from fake_kube.server import FakeKube

from sluice_pod_watcher.shell.kube.client import KubeApi
from sluice_pod_watcher.shell.kube.webhook_certificates import ConfiguredBundle, SecretStore
from sluice_pod_watcher.shell.webhook.cert_rotator import NotPublishedError
from sluice_pod_watcher.shell.webhook.cert_sources import StoredCertificates, StoreUnavailableError

NAMESPACE, SECRET = "sluice-system", "sluice-webhook-tls"
CONFIGURATION = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
WEBHOOKS = 15
"""Default modes, none among them, times ways to hand devices over."""
HOOKS = f"/apis/admissionregistration.k8s.io/v1/{CONFIGURATION.partition('.')[0]}"


class Site:
    """A cluster with Sluice's objects, and the client with which the webhook sees it."""

    def __init__(self, kube: FakeKube, cluster: Cluster, api: KubeApi) -> None:
        self.kube, self.cluster, self.api = kube, cluster, api
        self.store = SecretStore(api, NAMESPACE, SECRET)
        self.publisher = ConfiguredBundle(api, "sluice")

    def bundles(self) -> list[str]:
        hooks = self.kube.get(CONFIGURATION, "", "sluice")["webhooks"]
        return [base64.b64decode(hook["clientConfig"].get("caBundle", "")).decode() for hook in hooks]


@pytest.fixture
async def site(kube, api, tmp_path):
    cluster = Cluster(tmp_path / "config", kube)
    await install(cluster)
    async with cluster.opened() as opened:
        yield Site(kube, opened, api)


# -- the Secret ---------------------------------------------------------------------------------------------------


async def test_a_secret_that_was_just_applied_is_an_empty_store(site):
    """The manifests ship it without data: that must lead to a first certificate, not to an error."""
    kept = await site.store.load()
    assert (kept.text, bool(kept.version)) == ("", True)


async def test_what_is_saved_is_read_again_by_every_replica(site):
    """A certificate that only one replica has is trusted by chance."""
    kept = await site.store.load()
    assert await site.store.save('{"key": "\u00fc"}', replaces=kept.version)
    found = await SecretStore(site.api, NAMESPACE, SECRET).load()
    assert found.text == '{"key": "\u00fc"}'
    assert found.version != kept.version


async def test_of_two_that_renew_at_once_one_wins(site):
    """The loser must show the winner's certificate: the API server trusts that one."""
    kept = await site.store.load()
    assert await site.store.save("one", replaces=kept.version)
    assert not await site.store.save("other", replaces=kept.version)
    assert (await site.store.load()).text == "one"


async def test_a_secret_that_is_not_there_is_told_and_never_made(site):
    """A right to create Secrets cannot be limited to one name, so the webhook has none."""
    missing = SecretStore(site.api, NAMESPACE, "other")
    with pytest.raises(StoreUnavailableError, match=r"sluice-system/other keeps .* comes with the manifests"):
        await missing.load()
    with pytest.raises(StoreUnavailableError, match="cannot be written"):
        await missing.save("x", replaces="1")
    assert site.kube.count(verb="create", path="secrets", user="kubernetes-admin") == 1  # the applied one


async def test_an_api_server_that_is_away_is_an_outage_and_no_empty_store(site):
    """Taken for empty, a new certificate would replace the good one after every outage."""
    kept = await site.store.load()
    site.kube.faults.away(on=True)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        await site.store.load()
    with pytest.raises(StoreUnavailableError, match="no answer"):
        await site.store.save("x", replaces=kept.version)
    with pytest.raises(NotPublishedError, match="no answer"):
        await site.publisher.publish("CA")
    site.kube.faults.away(on=False)
    assert await site.store.load() == StoredCertificates("", kept.version)


# -- the caBundle -------------------------------------------------------------------------------------------------


async def test_every_webhook_is_told_and_nothing_is_written_twice(site):
    """Each default mode has a webhook of its own; one without a bundle refuses every pod of its namespaces."""
    for _ in range(3):
        await site.publisher.publish("CA 1")
    assert site.bundles() == ["CA 1"] * WEBHOOKS
    assert site.kube.count(verb="patch", path="mutatingwebhookconfigurations") == 1


async def test_an_overwritten_bundle_is_put_right(site):
    """Applying a manifest again, with a tool that writes all fields, would stop the creation of pods for good."""
    await site.publisher.publish("CA 1")
    patch = [{"op": "replace", "path": "/webhooks/2/clientConfig/caBundle", "value": base64.b64encode(b"x").decode()}]
    assert (await site.cluster.patch(f"{HOOKS}/sluice", patch)).code == 200
    await site.publisher.publish("CA 1")
    assert site.bundles() == ["CA 1"] * WEBHOOKS


async def test_a_configuration_that_is_not_there_is_told(site):
    """With half of the manifests applied, an operator sees which half is missing."""
    with pytest.raises(NotPublishedError, match=r"MutatingWebhookConfiguration other .* comes with the manifests"):
        await ConfiguredBundle(site.api, "other").publish("CA")
    assert (await site.cluster.patch(f"{HOOKS}/sluice", [{"op": "remove", "path": "/webhooks"}])).code == 200
    with pytest.raises(NotPublishedError, match="it has no webhooks, so no pod is reviewed"):
        await site.publisher.publish("CA")


async def test_a_right_that_is_missing_is_told_in_the_servers_words(site, tmp_path):
    """The sentence names the account, the verb and the object to fix."""
    token = site.kube.service_account_token(NAMESPACE, "powerless")
    api = await KubeApi.connect(site.kube.kubeconfig(tmp_path / "powerless", token=token))
    try:
        with pytest.raises(StoreUnavailableError, match='"system:serviceaccount:sluice-system:powerless" cannot get'):
            await SecretStore(api, NAMESPACE, SECRET).load()
        with pytest.raises(NotPublishedError, match="cannot get resource"):
            await ConfiguredBundle(api, "sluice").publish("CA")
    finally:
        await api.close()
