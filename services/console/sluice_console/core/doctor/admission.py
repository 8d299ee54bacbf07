"""
Whether pods that ask for GPUs really come by Sluice: the webhook, the policies behind it, and one pod that is tried.

Whether certificate and caBundle match is not calculated here: the API server is asked to call the webhook (a dry run).
"""

from collections.abc import Iterator, Mapping, Sequence

from sluice.contracts.kube.names import GATE
from sluice_console.core.doctor.cluster_view import APPLY, POLICIES, SYSTEM, WEBHOOK, AdmissionTrial, ObservedCluster
from sluice_console.core.doctor.findings import Check, FindingDocument, named, ok, problem, unknown, warning
from sluice_console.core.doctor.kube_objects import Object, at, by_name, items, labels, name, selects


def check_admission(seen: ObservedCluster) -> list[FindingDocument]:
    """Look at the webhook and the policies."""
    return [*_admission(seen), *_policies(seen)]


def namespace_for_trial(webhooks: Sequence[Object], namespaces: Sequence[Object]) -> str:
    """A namespace whose pods are sent to our webhook, `default` if it is one; empty when there is none."""
    hooks = items(by_name(webhooks).get(WEBHOOK, {}), "webhooks")
    served = [
        name(each)
        for each in namespaces
        if any(selects(hook.get("namespaceSelector") or {}, _labels_of_namespace(each)) for hook in hooks)
    ]
    return "default" if "default" in served else next(iter(sorted(served)), "")


# -- inside -------------------------------------------------------------------------------------------------------


def _labels_of_namespace(of: Object) -> Mapping[str, str]:
    return {**labels(of), "kubernetes.io/metadata.name": name(of)}


def _admission(seen: ObservedCluster) -> Iterator[FindingDocument]:
    webhooks = seen.of("webhooks")
    if webhooks is None:
        return
    ours = by_name(webhooks).get(WEBHOOK)
    if ours is None:
        yield problem(
            Check.ADMISSION,
            f"the MutatingWebhookConfiguration {WEBHOOK} is not there: pods that ask for GPUs are created without a "
            "gate, and no slice is made for them",
            APPLY,
        )
        return
    hooks = items(ours, "webhooks")
    bare = [str(hook.get("name")) for hook in hooks if not at(hook, "clientConfig", "caBundle")]
    open_ones = [str(hook.get("name")) for hook in hooks if hook.get("failurePolicy") != "Fail"]
    if bare:
        yield problem(
            Check.ADMISSION,
            f"no caBundle yet in {named(bare)}: the API server trusts no certificate, so pods that ask for GPUs cannot "
            "be created",
            f"kubectl --namespace {SYSTEM} logs deployment/sluice-webhook: it writes the caBundle (with cert-manager, "
            "cainjector does)",
        )
    if open_ones:
        yield problem(
            Check.ADMISSION,
            f"failurePolicy is not Fail in {named(open_ones)}: while the webhook is away, pods get onto GPUs past "
            "Sluice",
            APPLY,
        )
    if seen.trial is not None and not bare:
        yield _of_trial(seen.trial)


def _of_trial(trial: AdmissionTrial) -> FindingDocument:
    where = f"a pod that asks for a GPU, tried in namespace {trial.namespace} (a dry run)"
    if not trial.namespace:
        return warning(
            Check.ADMISSION,
            "no namespace is selected by the webhook",
            "label one sluice.dev/enabled=true where only such namespaces are looked at (docs/operations.md)",
        )
    if not trial.problem:
        gates = [gate.get("name") for gate in items(trial.pod, "spec", "schedulingGates")]
        if GATE in gates:
            return ok(Check.ADMISSION, f"{where}, would get its gate: certificate and caBundle match")
        return problem(Check.ADMISSION, f"{where}, would be created without our gate", APPLY)
    if "failed calling webhook" in trial.problem or "failed to call webhook" in trial.problem:
        return problem(
            Check.ADMISSION,
            f"{where}, would be refused: {trial.problem}",
            f"kubectl --namespace {SYSTEM} logs deployment/sluice-webhook; how to let pods in meanwhile: "
            "docs/operations.md",
        )
    if "cannot create resource" in trial.problem:
        return unknown(Check.ADMISSION, f"{where}: {trial.problem}", "run this as a user who may create pods there")
    return warning(
        Check.ADMISSION,
        f"{where}, would be refused: {trial.problem}",
        "if this is a rule of that namespace, nothing; the webhook was asked before it",
    )


def _policies(seen: ObservedCluster) -> Iterator[FindingDocument]:
    policies, bindings = seen.of("policies"), seen.of("bindings")
    if policies is None or bindings is None:
        return
    there = by_name(policies)
    missing = [each for each in POLICIES if each not in there]
    bound = {
        str(at(each, "spec", "policyName"))
        for each in bindings
        if "Deny" in items(each, "spec", "validationActions") and not at(each, "spec", "matchResources")
    }
    loose = [each for each in POLICIES if each in there and each not in bound]
    doubtful = [each for each in POLICIES if items(there.get(each, {}), "status", "typeChecking", "expressionWarnings")]
    if missing:
        yield problem(
            Check.POLICIES,
            f"ValidatingAdmissionPolicies are missing: {named(missing)}; a user who may change pods may change gates "
            "and grants",
            APPLY,
        )
    if loose:
        yield problem(Check.POLICIES, f"policies that nothing enforces (no binding with Deny): {named(loose)}", APPLY)
    if doubtful:
        yield warning(
            Check.POLICIES,
            f"the API server reports warnings for {named(doubtful)}",
            f"kubectl get validatingadmissionpolicy {doubtful[0]} -o yaml, at status.typeChecking",
        )
    if not missing and not loose and not doubtful:
        yield ok(Check.POLICIES, f"{named(POLICIES)} are enforced")
