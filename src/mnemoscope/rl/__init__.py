"""Agents with memory: environments, and what they see."""

from mnemoscope.rl._environment import Environment, Fleet, Observation, Spec, Transition

__all__ = ["Environment", "Fleet", "Observation", "Spec", "Transition"]
