"""Who is let in is let out: a policy at one end only is a command that hangs until its time is over."""

from pathlib import Path

import yaml

POLICIES = Path(__file__).parents[3] / "deploy/kubernetes/base/network-policies.yaml"
COMPONENT = "app.kubernetes.io/component"


def chosen(selector) -> set[str]:
    labels = selector.get("matchLabels", {})
    listed = [each["values"] for each in selector.get("matchExpressions", ()) if each["key"] == COMPONENT]
    return {labels[COMPONENT]} if COMPONENT in labels else {name for names in listed for name in names}


def allowed(direction: str, peers: str) -> set[tuple[str, str, int]]:
    """Who may reach whom at which port, as the policies of one direction say it: (this, other, port)."""
    found = set()
    for policy in yaml.safe_load_all(POLICIES.read_text(encoding="utf-8")):
        for rule in policy["spec"].get(direction, ()):
            for peer in rule.get(peers, ()):
                for this in chosen(policy["spec"]["podSelector"]):
                    for other in chosen(peer.get("podSelector", {})):
                        found |= {(this, other, port["port"]) for port in rule["ports"]}
    return found


def test_whoever_is_let_in_somewhere_is_let_out_to_it():
    """`sluice usage`, the page and `sluice explain` in the cluster would wait, then report no answer."""
    let_in = {(caller, at, port) for at, caller, port in allowed("ingress", "from")}
    let_out = allowed("egress", "to")
    for asks in ("console", "web"):
        assert (asks, "node-agent", 9411) in let_in
    assert let_in <= let_out, sorted(let_in - let_out)
