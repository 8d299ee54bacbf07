"""Read the scheduling part of a Pod's spec: its containers, its node needs besides GPUs, and its priority.

Validates what it reads as the API server would. GPU requests are passed on unread
(`sluice.contracts.request_syntax`)."""

from sluice.contracts.pod_specs.containers import MainContainer as MainContainer
from sluice.contracts.pod_specs.containers import literal_variable as literal_variable
from sluice.contracts.pod_specs.containers import main_container as main_container
from sluice.contracts.pod_specs.containers import read_containers as read_containers
from sluice.contracts.pod_specs.host_needs import read_host_needs as read_host_needs
from sluice.contracts.pod_specs.host_needs import read_node_terms as read_node_terms
from sluice.contracts.pod_specs.host_needs import read_pod_labels as read_pod_labels
from sluice.contracts.pod_specs.host_needs import with_node as with_node
from sluice.contracts.pod_specs.pod_affinity import unknown_demands as unknown_demands
from sluice.contracts.pod_specs.pod_priority import NO_PRIORITY as NO_PRIORITY
from sluice.contracts.pod_specs.pod_priority import PodPriority as PodPriority
from sluice.contracts.pod_specs.pod_priority import PriorityClass as PriorityClass
from sluice.contracts.pod_specs.pod_priority import read_priority as read_priority
from sluice.contracts.pod_specs.pod_priority import read_priority_class as read_priority_class
from sluice.contracts.pod_specs.pod_priority import unknown_class as unknown_class
from sluice.contracts.pod_specs.pod_priority import with_priority_class as with_priority_class
