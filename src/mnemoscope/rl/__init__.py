"""Agents with memory: environments, and what they see."""

from mnemoscope.rl._environment import Environment, Fleet, Observation, Spec, Transition
from mnemoscope.rl._minigrid import MiniGrid, MiniGridFleet

__all__ = ["Environment", "Fleet", "MiniGrid", "MiniGridFleet", "Observation", "Spec", "Transition"]
