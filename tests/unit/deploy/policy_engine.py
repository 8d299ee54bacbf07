"""Evaluates admission policies on objects, with the policies' own texts and a CEL engine.

What Kubernetes adds to the language (`split`, `join`, `authorizer`) is written here as Kubernetes documents it. Tests
that import this skip where the engine is not installed.
"""

from collections.abc import Callable
from typing import Any

import pytest
from deploy_check import Document
from unit.deploy.reading import Rendering, named

from sluice.contracts.kube import names

cel = pytest.importorskip("cel_expr_python.cel", reason="the CEL engine cel-expr-python is not installed")
optional = pytest.importorskip("cel_expr_python.ext.ext_optional")

OURS = f"main.{names.GRANTED_DOMAIN}/{names.VISIBLE_DEVICES}"
GATED = {"schedulingGates": [{"name": names.GATE}]}
INJECTED = {
    "name": names.ENV_VISIBLE_DEVICES,
    "valueFrom": {"fieldRef": {"fieldPath": names.granted_field_path("main", names.VISIBLE_DEVICES)}},
}
VOLUME = {"name": names.VOLUME, "csi": {"driver": names.CSI_DRIVER, "readOnly": True}}
MOUNT = {"name": names.VOLUME, "mountPath": names.MOUNT_PATH, "subPathExpr": names.TICKET_SUB_PATH, "readOnly": True}
TOKEN = {"name": "kube-api-access", "projected": {"sources": []}}
"""Every pod has such a volume: a rule that trips over it refuses everything."""


def _engine() -> Any:
    """The language with what Kubernetes adds to it. An authorizer is a map that grows with each call."""
    text, dyn = cel.Type.STRING, cel.Type.DYN
    listed, who = cel.Type.List(dyn), cel.Type.Map(dyn, dyn)

    def method(name: str, takes: list[Any], gives: Any, call: Callable[..., Any]) -> Any:
        overload = cel.Overload(f"{name}_of_kubernetes", return_type=gives, parameters=takes, is_member=True, impl=call)
        return cel.FunctionDecl(name, [overload])

    def asked(key: str) -> Callable[[dict[str, Any], str], dict[str, Any]]:
        return lambda authorizer, value: {**authorizer, key: value}

    functions = [
        method("join", [listed, text], text, lambda parts, between: between.join(parts)),
        method("split", [text, text], cel.Type.List(text), lambda whole, between: whole.split(between)),
        method("group", [who, text], who, asked("group")),
        method("resource", [who, text], who, asked("resource")),
        method("namespace", [who, text], who, asked("namespace")),
        method("check", [who, text], who, asked("verb")),
        method("allowed", [who], cel.Type.BOOL, _allowed),
    ]
    variables = dict.fromkeys(("object", "oldObject", "namespaceObject", "request", "variables", "authorizer"), dyn)
    return cel.NewEnv(variables=variables, extensions=[optional.ExtOptional()], functions=functions)


def _allowed(asked: dict[str, Any]) -> bool:
    """The user may `bind` `slices.sluice.dev`, or nothing."""
    right = (asked["group"], asked["resource"], asked["verb"])
    return asked["may_bind"] and right == ("sluice.dev", "slices", "bind")


ENGINE = _engine()


def evaluate(expression: str, data: dict[str, Any]) -> Any:
    """The value of one expression. An error of CEL is an error here: with `Fail` it would refuse the pod."""
    value = ENGINE.compile(expression).eval(data=data)
    assert value.type() != cel.Type.ERROR, (expression, value.plain_value())
    return value.plain_value()


def denials(policy: Document, data: dict[str, Any]) -> list[str]:
    """The messages of the rules that refuse; empty when the request passes or is none of the policy's business."""
    spec = policy["spec"]
    somewhere = {"metadata": {"labels": {"kubernetes.io/metadata.name": "lab"}}}
    given = {"authorizer": {"may_bind": False}, "oldObject": None, "namespaceObject": somewhere}
    data = {**given, **data, "variables": {}}
    if not all(evaluate(condition["expression"], data) for condition in spec.get("matchConditions", ())):
        return []
    for variable in spec.get("variables", ()):
        data["variables"][variable["name"]] = evaluate(variable["expression"], data)
    return [
        evaluate(rule["messageExpression"], data) if "messageExpression" in rule else rule["message"]
        for rule in spec["validations"]
        if evaluate(rule["expression"], data) is not True
    ]


def pod(*, env: Any = (), mounts: Any = (), volumes: Any = (), metadata: Any = None, **spec: Any) -> Document:
    """A pod with one container `main`, as an API server hands it to a policy: fields that are not set are absent."""
    main: Document = {"name": "main", "image": "i"}
    if env:
        main["env"] = list(env)
    if mounts:
        main["volumeMounts"] = list(mounts)
    return {"metadata": metadata or {"name": "p"}, "spec": {"containers": [main], "volumes": [TOKEN, *volumes], **spec}}


def env(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def policy_of(rendered: Rendering, name: str, components: Any = ()) -> Document:
    """One policy as it is applied, and that it is bound to deny."""
    objects = rendered("single", components)
    bindings = [each["spec"] for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert [each["validationActions"] for each in bindings if each["policyName"] == name] == [["Deny"]]
    policy = named(objects, "ValidatingAdmissionPolicy", name)
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert all(rule["reason"] == "Forbidden" for rule in policy["spec"]["validations"])
    return policy


def refused(rendered: Rendering, policy: str, made: Document, components: Any = (), **more: Any) -> list[str]:
    """What a policy, as these components render it, says against the creation of an object."""
    asked = {"object": made, "request": {"operation": "CREATE"}, **more}
    return denials(policy_of(rendered, policy, components), asked)
