"""Each account may do what its service calls, and nothing else: the table of `kubectl auth can-i`, offline."""

from collections.abc import Iterator

import pytest
from deploy_check import COMPONENTS, OVERLAYS, Document
from factories.cluster.account_rights import ADMISSION, EVERYWHERE, NEEDED, PLACEHOLDERS, Right
from unit.deploy.reading import Rendering, named

WATCHING, SERVING = ("pod-watcher", "callout", "webhook"), ("allocator", "inventory", "nats", "streams", "node-agent")
ACCOUNTS = (*WATCHING, *SERVING, "console", "operator")
FORBIDDEN = (
    *(Right(verb, "pods") for verb in ("get", "create", "update", "delete")),
    *(Right("create", resource) for resource in ("pods/exec", "pods/binding", "events", "secrets")),
    *(Right("patch", resource) for resource in ("pods/ephemeralcontainers", "nodes", "nodes/status")),
    Right("list", "secrets"),
    Right("get", "secrets", "", "any", "sluice-system"),
    Right("get", "secrets", "", "others", "sluice-nodes"),
    Right("create", "serviceaccounts/token"),
    Right("patch", "mutatingwebhookconfigurations", ADMISSION, "another"),
    Right("patch", "validatingadmissionpolicies", ADMISSION, "sluice-keep"),
    Right("escalate", "clusterroles", "rbac.authorization.k8s.io"),
    Right("impersonate", "users"),
)


def rights(rendered: list[Document], account: str) -> Iterator[Right]:
    """Every right that the roles bound to an account give, one by one."""
    namespace = "sluice-nodes" if account == "node-agent" else "sluice-system"
    subject = {"kind": "ServiceAccount", "name": f"sluice-{account}", "namespace": namespace}
    roles = {
        (each["kind"], each["metadata"].get("namespace", EVERYWHERE), each["metadata"]["name"]): each
        for each in rendered
        if each["kind"] in {"Role", "ClusterRole"}
    }
    for binding in rendered:
        if binding["kind"] not in {"RoleBinding", "ClusterRoleBinding"} or subject not in binding["subjects"]:
            continue
        where = binding["metadata"].get("namespace", EVERYWHERE)
        role = roles[binding["roleRef"]["kind"], where, binding["roleRef"]["name"]]
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", [""]):
                        for verb in rule["verbs"]:
                            yield Right(verb, resource, group, name, where)


def may(given: set[Right], asked: Right) -> bool:
    """Whether one of the given rights allows what is asked, as RBAC sees it."""
    return any(
        right.verb in {asked.verb, "*"}
        and right.resource in {asked.resource, "*"}
        and right.group in {asked.group, "*"}
        and right.name in {asked.name, ""}
        and right.namespace in {asked.namespace, EVERYWHERE}
        for right in given
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("components", [(), COMPONENTS])
@pytest.mark.parametrize("account", ACCOUNTS)
def test_an_account_has_exactly_the_rights_that_its_service_uses(rendered: Rendering, overlay, components, account):
    """One too few is a 403 in production; one too many is what a stolen token can do."""
    more = PLACEHOLDERS if components and account == "pod-watcher" else set()
    assert set(rights(rendered(overlay, components), account)) == NEEDED.get(account, set()) | more


@pytest.mark.parametrize("account", ACCOUNTS)
@pytest.mark.parametrize("asked", FORBIDDEN, ids=lambda right: f"{right.verb} {right.resource} {right.name}".strip())
def test_no_account_may_do_what_would_make_it_master_of_the_cluster(rendered: Rendering, account, asked):
    assert not may(set(rights(rendered("ha", COMPONENTS), account)), asked)


@pytest.mark.parametrize(
    ("account", "asked"), [(who, right) for who in NEEDED for right in sorted(NEEDED[who])], ids=str
)
def test_what_is_called_is_allowed(rendered: Rendering, account, asked):
    assert may(set(rights(rendered("single"), account)), asked)


@pytest.mark.parametrize("components", [(), COMPONENTS])
def test_no_role_says_everything(rendered: Rendering, components):
    for role in rendered("ha", components):
        if role["kind"] in {"Role", "ClusterRole"}:
            assert all("*" not in words for rule in role["rules"] for words in rule.values())


def test_the_table_would_notice():
    """`may` itself: a star, a name and a namespace are taken for what they are."""
    asked = Right("get", "secrets", "", "other", "sluice-system")
    assert may({Right("*", "*", "*")}, asked)
    assert may({Right("get", "secrets")}, asked)
    assert not may({Right("get", "secrets", "", "mine", "sluice-system")}, asked)
    assert not may({Right("get", "secrets", "", "", "elsewhere")}, asked)


def test_people_who_may_view_may_view_gpus(rendered: Rendering):
    """`kubectl get gpus` is for all users; only the watcher writes."""
    role = named(rendered("single"), "ClusterRole", "sluice-view-gpus")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert role["rules"] == [{"apiGroups": ["sluice.dev"], "resources": ["gpus"], "verbs": ["get", "list", "watch"]}]
