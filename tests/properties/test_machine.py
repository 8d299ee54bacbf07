"""Requests and facts in any order: the dose for every test run. `python tests/properties --steps N` runs more."""

from properties.machine import FleetMachine, machine_settings

TestFleet = FleetMachine.TestCase
TestFleet.settings = machine_settings(examples=25, steps=30, derandomize=True)
