"""A shared fleet in any order of events: the dose for every test run. `python tests/properties --steps N` runs more."""

from properties.machine import machine_settings
from properties.sharing import SharingMachine

TestSharing = SharingMachine.TestCase
TestSharing.settings = machine_settings(examples=20, steps=25, derandomize=True)
