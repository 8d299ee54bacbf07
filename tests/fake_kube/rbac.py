"""Bearer tokens, and the Roles and ClusterRoles of their users; refusals read as kube-apiserver v1.36.2's."""

import base64
import json
import secrets
import time
from dataclasses import dataclass

from fake_kube.errors import ApiError, Json, forbidden
from fake_kube.resource_types import RBAC, Target
from fake_kube.store import Store

MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""

    def info(self) -> Json:
        return {"username": self.name, "groups": list(self.groups), **({"uid": self.uid} if self.uid else {})}


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


def service_account(namespace: str, name: str) -> User:
    """The user that a service account is."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


@dataclass(frozen=True, slots=True)
class Wish:
    """A requested action, as authorisation sees it."""

    verb: str
    group: str
    resource: str
    """With its subresource: `pods/status`."""
    namespace: str = ""
    name: str = ""

    @staticmethod
    def of(target: Target, name: str = "") -> "Wish":
        """Of a request; `name` is one that a field selector gave."""
        resource = target.resource
        wanted = target.name or name
        if resource.plural == "namespaces":
            return Wish(target.verb, resource.group, target.path, target.name, wanted)
        return Wish(target.verb, resource.group, target.path, target.namespace, wanted)


class Access:
    """Tokens and rights."""

    def __init__(self, store: Store) -> None:
        """Rights are those of the roles in this store."""
        self._store = store
        self._tokens: dict[str, User] = {}
        self._bound: dict[str, Json] = {}

    def token(self, user: User) -> str:
        made = secrets.token_urlsafe(24)
        self._tokens[made] = user
        return made

    def bound_token(
        self, user: User, audience: str, *, pod: str = "", node: str = "", lifetime_s: float = 3600.0
    ) -> str:
        """A token as kubelets project them, for an audience, bound to a pod and its node (empty: none)."""
        claims = {
            "aud": [audience],
            "exp": int(time.time() + lifetime_s),
            "sub": user.name,
            "jti": secrets.token_hex(8),
        }
        parts = (json.dumps(each).encode() for each in ({"alg": "RS256"}, claims))
        body = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
        made = f"{body}.{secrets.token_urlsafe(48)}"
        names = {"pod-name": pod, "node-name": node}
        extra = {f"authentication.kubernetes.io/{key}": [value] for key, value in names.items() if value}
        self._bound[made] = {"user": {**user.info(), "extra": extra}, "audiences": [audience], "exp": claims["exp"]}
        return made

    def review(self, spec: Json) -> Json:
        found = self._bound.get(spec.get("token", ""))
        if found is None:
            return {"user": {}, "error": "invalid bearer token"}
        if found["exp"] <= time.time():
            return {"user": {}, "error": "invalid bearer token, service account token has expired"}
        audiences = [each for each in found["audiences"] if each in (spec.get("audiences") or ())]
        if not audiences:
            return {"user": {}, "error": f"token audiences {found['audiences']!r} is invalid for the target audiences"}
        return {"authenticated": True, "user": found["user"], "audiences": audiences}

    def revoke(self, token: str) -> None:
        """Revoke a token: of a bound one, its pod is deleted."""
        self._tokens.pop(token, None)
        self._bound.pop(token, None)

    def user(self, header: str) -> User:
        """Who sent an Authorization header, or the anonymous user. Raises ApiError: 401: an unknown token."""
        if not header:
            return ANONYMOUS
        kind, _, token = header.partition(" ")
        if kind.lower() != "bearer" or token not in self._tokens:  # any case: the official client writes both
            raise ApiError(401, "Unauthorized")
        return self._tokens[token]

    def check(self, user: User, wish: Wish) -> None:
        """Allow what a role allows. Raises ApiError: 403 with the server's message."""
        if not self.allowed(user, wish):
            raise self.refusal(user, wish)

    @staticmethod
    def refusal(user: User, wish: Wish) -> ApiError:
        """The answer to a request without the right."""
        resource = wish.resource
        where = f'in the namespace "{wish.namespace}"' if wish.namespace else "at the cluster scope"
        why = f'User "{user.name}" cannot {wish.verb} resource "{resource}" in API group "{wish.group}" {where}'
        plural = resource.partition("/")[0]
        return forbidden(f"{plural}.{wish.group}" if wish.group else plural, wish.name, why)

    def allowed(self, user: User, wish: Wish) -> bool:
        """Whether a role bound to the user or one of its groups allows it."""
        if MASTERS in user.groups:
            return True
        for binding in self._store.listed(f"clusterrolebindings.{RBAC}"):
            if _binds(binding, user) and any(_grants(rule, wish) for rule in self._rules(binding, "")):
                return True
        if not wish.namespace:
            return False
        for binding in self._store.listed(f"rolebindings.{RBAC}", wish.namespace):
            if _binds(binding, user) and any(_grants(rule, wish) for rule in self._rules(binding, wish.namespace)):
                return True
        return False

    def _rules(self, binding: Json, namespace: str) -> list[Json]:
        reference = binding["roleRef"]
        if reference["kind"] == "ClusterRole":
            role = self._store.get(f"clusterroles.{RBAC}", "", reference["name"])
        else:
            role = self._store.get(f"roles.{RBAC}", namespace, reference["name"])
        return (role or {}).get("rules") or []


def _binds(binding: Json, user: User) -> bool:
    for subject in binding.get("subjects") or []:
        if subject["kind"] == "ServiceAccount":
            namespace = subject.get("namespace") or binding["metadata"].get("namespace", "")
            if user.name == f"system:serviceaccount:{namespace}:{subject['name']}":
                return True
        elif (subject["kind"] == "User" and subject["name"] == user.name) or (
            subject["kind"] == "Group" and subject["name"] in user.groups
        ):
            return True
    return False


def _grants(rule: Json, wish: Wish) -> bool:
    subresource = wish.resource.partition("/")[2]
    resources = rule.get("resources") or []
    names = rule.get("resourceNames") or []
    return (
        not {wish.verb, "*"}.isdisjoint(rule.get("verbs") or [])
        and not {wish.group, "*"}.isdisjoint(rule.get("apiGroups") or [])
        and (not {wish.resource, "*"}.isdisjoint(resources) or bool(subresource and f"*/{subresource}" in resources))
        and (not names or wish.name in names)
    )
