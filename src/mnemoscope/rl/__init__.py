"""Agents with memory: environments, and what they see."""

from mnemoscope.rl._environment import Environment, Fleet, Observation, Spec, Transition
from mnemoscope.rl._gym import Gym, GymFleet, VectorFleet
from mnemoscope.rl._memory_need import Poses, memory_poses
from mnemoscope.rl._minigrid import MiniGrid, MiniGridFleet

__all__ = [
    "Environment",
    "Fleet",
    "Gym",
    "GymFleet",
    "MiniGrid",
    "MiniGridFleet",
    "Observation",
    "Poses",
    "Spec",
    "Transition",
    "VectorFleet",
    "memory_poses",
]
