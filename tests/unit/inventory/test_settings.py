"""Settings that would stop the inventory from working are refused at the start."""

import pytest

from sluice.runtime.settings import SettingsError, load
from sluice_inventory.core.config import InventoryConfig
from sluice_inventory.settings import InventorySettings


def test_without_settings_the_documented_defaults_hold():
    """The settings and the core's config have the same numbers."""
    assert load(InventorySettings, service="inventory", environ={}).config() == InventoryConfig()


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("STALE_AFTER_S", "18", "healthy nodes would be stale between two pulls"),
        ("PULL_TIMEOUT_S", "0", "are more than 0"),
        ("PULLS_MAX", "4", "retries_max = 16: from 1 to pulls_max"),
        ("WATCH_PENDING_MAX", "0", "watch_pending_max at least 1"),
        ("GRPC_ADRESS", "x", "did you mean SLUICE_INVENTORY_GRPC_ADDRESS"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_in_words(variable, value, sentence):
    with pytest.raises(SettingsError, match=sentence):
        load(InventorySettings, service="inventory", environ={f"SLUICE_INVENTORY_{variable}": value})
