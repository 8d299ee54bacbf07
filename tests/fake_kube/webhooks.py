"""Mutating webhooks: select those for a request, call one over TLS, trusting the configuration's caBundle alone."""

import asyncio
import base64
import json
import ssl
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from fake_kube.errors import ApiError, Json
from fake_kube.rbac import User
from fake_kube.requests import selectors
from fake_kube.requests.patch_formats import json_patch
from fake_kube.resource_types import Target
from fake_kube.store import Store

CONFIGURATIONS = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
DEFAULT_TIMEOUT_S = 10
Condition = Callable[[Json], bool]


@dataclass(slots=True)
class Routes:
    """Where the cluster's services are, and what stands for matchConditions (README: where it differs)."""

    services: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """(namespace, name) -> host and port that really listen."""
    conditions: dict[str, Condition] = field(default_factory=dict)
    """By the condition's name; one that is not here counts as true."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be admitted."""

    target: Target
    operation: str
    obj: Json
    old: Json | None
    user: User
    dry_run: bool


def registered(store: Store) -> list[Json]:
    """All webhooks, in the order of their configurations' names."""
    return [hook for configuration in store.listed(CONFIGURATIONS) for hook in configuration.get("webhooks") or []]


def applies(store: Store, hook: Json, asked: Asked, routes: Routes) -> bool:
    """Whether a request goes to a webhook. Webhook configurations themselves go to none."""
    if asked.target.resource.group == "admissionregistration.k8s.io":
        return False
    if not any(_rule(rule, asked) for rule in hook.get("rules") or []) or not _selected(store, hook, asked):
        return False
    conditions = [routes.conditions.get(each["name"]) for each in hook.get("matchConditions") or []]
    return all(condition is None or condition(asked.obj) for condition in conditions)


def _rule(rule: Json, asked: Asked) -> bool:
    resource = asked.target.resource
    resources = rule.get("resources") or []
    path, subresource = asked.target.path, asked.target.subresource
    scope = rule.get("scope", "*")
    return (
        not {asked.operation, "*"}.isdisjoint(rule.get("operations") or [])
        and not {resource.group, "*"}.isdisjoint(rule.get("apiGroups") or [])
        and not {resource.version, "*"}.isdisjoint(rule.get("apiVersions") or [])
        and (
            path in resources
            or "*/*" in resources
            or (not subresource and "*" in resources)
            or f"{resource.plural}/*" in resources
        )
        and scope in {"*", "Namespaced" if resource.namespaced else "Cluster"}
    )


def _selected(store: Store, hook: Json, asked: Asked) -> bool:
    namespace = store.get("namespaces", "", asked.target.namespace) if asked.target.namespace else None
    if namespace is not None and not selectors.selector(
        hook.get("namespaceSelector", {}), namespace["metadata"].get("labels")
    ):
        return False
    wanted = hook.get("objectSelector", {})
    carried = [obj["metadata"].get("labels") for obj in (asked.obj, asked.old) if obj is not None]
    return any(selectors.selector(wanted, each) for each in carried)


async def call(hook: Json, asked: Asked, routes: Routes, session: aiohttp.ClientSession) -> tuple[Json, list[str]]:
    """The object after one webhook, and warnings. Raises ApiError: its denial; 500: unreachable, slow, wrong patch."""
    try:
        review = await _ask(hook, asked, routes, session)
    except (aiohttp.ClientError, TimeoutError, ValueError, ssl.SSLError, ConnectionError) as fault:
        if hook.get("failurePolicy", "Fail") == "Ignore":
            return asked.obj, []
        why = "context deadline exceeded" if isinstance(fault, TimeoutError) else str(fault)
        limit = hook.get("timeoutSeconds", DEFAULT_TIMEOUT_S)
        place = f"{_shown(hook)}?timeout={limit}s"
        text = f'failed calling webhook "{hook["name"]}": failed to call webhook: Post "{place}": {why}'
        raise ApiError(500, f"Internal error occurred: {text}", details={"causes": [{"message": text}]}) from fault
    answer = review.get("response") or {}
    warnings = [str(each) for each in answer.get("warnings") or []]
    if not answer.get("allowed"):
        raise _denial(hook, answer.get("status") or {})
    return (_patched(hook, asked.obj, answer["patch"]) if answer.get("patch") else asked.obj), warnings


def _denial(hook: Json, status: Json) -> ApiError:
    told = status.get("message") or status.get("reason")
    text = f'admission webhook "{hook["name"]}" denied the request' + (f": {told}" if told else " without explanation")
    return ApiError(int(status.get("code") or 400), text, reason=status.get("reason"))


def _patched(hook: Json, obj: Json, encoded: str) -> Json:
    kind = ""
    try:
        for operation in json.loads(base64.b64decode(encoded)):
            kind = operation["op"]
            obj = json_patch(obj, [operation])
    except (ApiError, ValueError, KeyError, TypeError) as fault:
        text = f"error in {kind} for path: the patch of webhook {hook['name']} does not fit the object"
        raise ApiError(500, f"Internal error occurred: {text}") from fault
    return obj


def _shown(hook: Json) -> str:
    client = hook["clientConfig"]
    if "url" in client:
        return str(client["url"])
    service = client["service"]
    return f"https://{service['name']}.{service['namespace']}.svc:{service.get('port', 443)}{service.get('path', '/')}"


async def _ask(hook: Json, asked: Asked, routes: Routes, session: aiohttp.ClientSession) -> Json:
    client, limit_s = hook["clientConfig"], hook.get("timeoutSeconds", DEFAULT_TIMEOUT_S)
    url, server = _shown(hook), None
    if "service" in client:
        service = client["service"]
        key = (service["namespace"], service["name"])
        if key not in routes.services:
            raise ValueError(f'service "{service["name"]}" not found')
        host, port = routes.services[key]
        url, server = (
            f"https://{host}:{port}{service.get('path', '/')}",
            f"{service['name']}.{service['namespace']}.svc",
        )
    # A server refuses an empty caBundle for a private CA: nothing but the bundle is trusted here.
    trust = ssl.create_default_context(cadata=base64.b64decode(client.get("caBundle") or "").decode() or None)
    body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": _request(asked)}
    async with asyncio.timeout(limit_s):
        async with session.post(
            url, params={"timeout": f"{limit_s}s"}, json=body, ssl=trust, server_hostname=server
        ) as response:
            if response.status != 200:
                raise ValueError(f"the server responded with the status code {response.status}")
            review = await response.json(content_type=None)
    if not isinstance(review, Mapping) or (review.get("response") or {}).get("uid") != body["request"]["uid"]:
        raise ValueError("expected response.uid to be that of the request")
    if review.get("kind") != "AdmissionReview" or review.get("apiVersion") != "admission.k8s.io/v1":
        raise ValueError("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview")
    return dict(review)


def _request(asked: Asked) -> Json:
    resource = asked.target.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    plural = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    name = asked.obj["metadata"].get("name", "")
    sub = asked.target.subresource
    return {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": plural,
        **({"subResource": sub} if sub else {}),
        "requestKind": kind,
        "requestResource": plural,
        **({"requestSubResource": sub} if sub else {}),
        **({"name": name} if name else {}),
        **({"namespace": asked.target.namespace} if asked.target.namespace else {}),
        "operation": asked.operation,
        "userInfo": asked.user.info(),
        "object": asked.obj,
        "oldObject": asked.old,
        "dryRun": asked.dry_run,
        "options": {"kind": f"{asked.operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
