"""Any order of events around the token scheduler: the dose for every test run."""

from properties.machine import machine_settings
from properties.token_machine import TokenMachine

TestTokens = TokenMachine.TestCase
TestTokens.settings = machine_settings(examples=30, steps=40, derandomize=True)
