"""The page in the cluster: it starts, is found by its names, and may write nothing."""

from unit.deploy.reading import Rendering, environment, named, pod_of

from sluice.contracts.bus.nats_permissions import permissions_of
from sluice.contracts.bus.streams import Role
from sluice.runtime.settings import CommonSettings, load
from sluice_console.__main__ import app
from sluice_console.core.web.request_check import denied
from sluice_console.shell.web.listen_address import host_and_port


def test_the_page_in_a_cluster_starts_and_knows_the_names_that_lead_to_it(rendered: Rendering):
    """An argument that the command does not know ends it; a name that it does not know is answered by nothing."""
    objects = rendered("single")
    (container,) = pod_of(objects, "Deployment", "sluice-web")["containers"]
    command, bound, _ = app.parse_args(container["args"], exit_on_error=False, print_error=False)
    said = bound.arguments
    assert command.__name__ == "web_command"
    (port,) = container["ports"]
    assert host_and_port(said["listen"]) == ("0.0.0.0", port["containerPort"])
    service = named(objects, "Service", "sluice-web")["metadata"]
    in_the_cluster = (service["name"], f"{service['name']}.{service['namespace']}.svc")
    for host in (*in_the_cluster, "10.1.2.3:8617", "localhost:8617"):
        for path in ("/", container["readinessProbe"]["httpGet"]["path"]):
            asked = denied(method="GET", path=path, headers={"host": host}, hosts=said["host"], is_data=False)
            assert asked is None, asked


def test_the_pages_user_may_write_nothing(rendered: Rendering):
    (container,) = pod_of(rendered("single"), "Deployment", "sluice-web")["containers"]
    settings = load(CommonSettings, service="console", environ=environment(container))
    rights = permissions_of(Role.CONSOLE)
    assert settings.nats_user == rights.user
    assert all(subject.startswith("$JS.API.") for subject in rights.publish)
