"""The webhook with a certificate of cert-manager's: names on both sides match, and no unused right stays."""

from datetime import timedelta

import deploy_check
import pytest
from deploy_check import Document
from unit.deploy.reading import Rendering, named, pod_of, settings_of

WEBHOOK = "sluice-webhook"


@pytest.fixture
def objects(rendered: Rendering) -> list[Document]:
    return rendered("single", ["cert-manager"])


def names_of(objects: list[Document], *kinds: str) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] in kinds}


def test_the_certificate_is_mounted_where_the_webhook_reads_it(objects):
    """Two names that differ, and no GPU pod can be created."""
    certificate = named(objects, "Certificate", WEBHOOK)["spec"]
    spec = pod_of(objects, "Deployment", WEBHOOK)
    (container,) = spec["containers"]
    (volume,) = [each for each in spec["volumes"] if each.get("secret")]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    assert volume["secret"]["secretName"] == certificate["secretName"]
    assert (mount["mountPath"], mount["readOnly"]) == (str(settings_of(container).certificate_dir), True)


def test_the_certificate_is_for_the_name_by_which_api_servers_come(objects):
    hooks = named(objects, "MutatingWebhookConfiguration", "sluice")["webhooks"]
    services = [hook["clientConfig"]["service"] for hook in hooks]
    certificate = named(objects, "Certificate", WEBHOOK)["spec"]
    assert set(certificate["dnsNames"]) == {f"{each['name']}.{each['namespace']}.svc" for each in services}
    assert "server auth" in certificate["usages"]


def test_cert_manager_is_told_whose_authority_to_publish(objects):
    """Without this the caBundle stays unwritten: the webhook does not write it any more."""
    configuration = named(objects, "MutatingWebhookConfiguration", "sluice")
    certificate = named(objects, "Certificate", WEBHOOK)["metadata"]
    wanted = f"{certificate['namespace']}/{certificate['name']}"
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == wanted


def test_a_renewal_changes_nothing_for_api_servers(objects):
    """The authority outlives its certificates: else no GPU pod can be created until the new file is mounted."""
    certificate = named(objects, "Certificate", WEBHOOK)["spec"]
    issuer = named(objects, "Issuer", certificate["issuerRef"]["name"])["spec"]
    authority = named(objects, "Certificate", "sluice-webhook-authority")["spec"]
    assert issuer["ca"]["secretName"] == authority["secretName"]
    assert authority["isCA"] is True
    assert named(objects, "Issuer", authority["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
    hours = [int(each["duration"].removesuffix("h")) for each in (certificate, authority)]
    assert timedelta(hours=hours[0]) * 10 < timedelta(hours=hours[1])


def test_the_webhook_keeps_no_right_and_no_token(objects, rendered: Rendering):
    """It connects to no API server with a certificate that is mounted."""
    kinds = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    own = names_of(rendered("single"), *kinds, "Secret") - names_of(objects, *kinds, "Secret")
    assert own == {*((kind, WEBHOOK) for kind in kinds), ("Secret", "sluice-webhook-tls")}
    assert pod_of(objects, "Deployment", WEBHOOK)["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "Certificate", "spec": {"dnsName": "a"}}, "spec.dnsName: not a field that was looked up"),
        ({"kind": "Order", "spec": {}}, "not a kind that was looked up"),
    ],
)
def test_a_field_of_others_that_was_not_looked_up_is_found(document, words):
    """There is no schema at hand for these, so a slip of the pen would be dropped at the cluster."""
    whole = {"apiVersion": "cert-manager.io/v1", "metadata": {"name": "a"}, **document}
    assert [words in problem for problem in deploy_check.problems_of_schema(whole, "")] == [True]
