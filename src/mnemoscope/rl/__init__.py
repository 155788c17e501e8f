"""Agents with memory: environments, what they see, and proximal policy optimization of policies that remember."""

from mnemoscope.rl._environment import Fleet, Observation, Spec, Transition
from mnemoscope.rl._evaluation import play_episodes, play_randomly
from mnemoscope.rl._film import film
from mnemoscope.rl._gym import Gym, GymFleet, VectorFleet
from mnemoscope.rl._memory_need import Poses, memory_poses
from mnemoscope.rl._minigrid import MiniGrid, MiniGridFleet
from mnemoscope.rl._play import Frame, Player
from mnemoscope.rl._policy import Policy
from mnemoscope.rl._ppo import PPOConfig, PPOLearner, Rollout, advantages
from mnemoscope.rl._task import PPO, Environment
from mnemoscope.rl._tmaze import TMaze, TMazeFleet

__all__ = [
    "PPO",
    "Environment",
    "Fleet",
    "Frame",
    "Gym",
    "GymFleet",
    "MiniGrid",
    "MiniGridFleet",
    "Observation",
    "PPOConfig",
    "PPOLearner",
    "Player",
    "Policy",
    "Poses",
    "Rollout",
    "Spec",
    "TMaze",
    "TMazeFleet",
    "Transition",
    "VectorFleet",
    "advantages",
    "film",
    "memory_poses",
    "play_episodes",
    "play_randomly",
]
