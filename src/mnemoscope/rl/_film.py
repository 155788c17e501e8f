"""One episode of a trained agent, frame by frame, with what it attends to: a finding for the page."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from mnemoscope.finding import Finding
from mnemoscope.recurrence import Attention
from mnemoscope.rl._environment import Fleet
from mnemoscope.rl._policy import Policy, split_outputs, to_tensor
from mnemoscope.wording import counted

if TYPE_CHECKING:
    from mnemoscope.rl._task import Environment

FRAMES = 12  # that are shown of an episode
ATTEMPTS = 5  # episodes among which one that succeeded is looked for
LAST_STEPS = 10  # of an episode, among which its decision is
LONGEST = 400  # steps of an episode that are shown
MAX_STEPS = 10_000  # of an episode that does not end
_BAR, _WIDTH = 16, 64  # height of a number and width of a frame in pixels, where an environment has no picture
_COLUMN = 16  # numbers below each other in such a frame

HELP = (
    "Frames of one episode, in order. The bar below a frame is the attention that the agent gives to the state of that "
    "step when it decides; it is as long as the frame where it is longest.",
    "The decision is the step among the last ten that looks back furthest.",
)


class _Episode(NamedTuple):
    """What was seen and done in an episode."""

    pictures: list[np.ndarray]
    """Of the last steps, those that can be shown; the numbers that were seen where an environment has no picture."""
    actions: list[int]
    rewards: list[float]
    attention: list[dict[int, float]] | None
    """For each step, the attention that it gives to the state of each earlier one."""
    cue: list[int]
    """Steps that showed the cue."""


def film(policy: Policy, task: Environment, *, seed: int = 0) -> Finding:
    """Return an episode of a policy: the first of five that succeeds, or the last of them.

    Series: `frames` (N, height, width, 3), pictures of the steps `frame_steps` (N,); `actions` and `rewards` (T,); for
    an attentive layer `attention` (T, T), what each step gives to the state of each earlier one, and
    `attention_at_decision` (T,). Figures: `steps` and `return` of the episode; `first_step`, with which these series
    begin: of a long episode the last 400 steps are shown, and one that does not end is left after 10,000; `decision`;
    where it is known what must be remembered, `cue_last_seen`, the last step up to the decision that showed it, and
    `attention_to_cue`, what the decision gives to the steps that did.
    """
    generator = task.generator("film", seed)
    with closing(task.film_fleet()) as fleet:
        observation = fleet.reset(task.fleet_seed("test", seed))
        success = fleet.spec.success
        for _ in range(ATTEMPTS):
            episode, observation = _play(policy, fleet, observation, generator)
            if success is None or sum(episode.rewards) > success or len(episode.actions) == MAX_STEPS:
                break
    return _finding(episode, success)


@torch.no_grad()
def _play(policy: Policy, fleet: Fleet, observation: Any, generator: torch.Generator) -> tuple[_Episode, Any]:
    """Play one episode; return it, and the first observation of the next."""
    weight = policy.readout.weight
    state = policy.initial_state(1)
    episode = _Episode([], [], [], [], [])
    for _ in range(MAX_STEPS):
        x = to_tensor(observation).to(weight.device, weight.dtype)
        output, state, attended = policy.observe(x, state)
        picture = fleet.picture(0)
        episode.pictures.append(x[0].cpu().double().numpy() if picture is None else picture)
        del episode.pictures[:-LONGEST]
        if fleet.shows_cue(0):
            episode.cue.append(len(episode.actions))
        if attended is not None and episode.attention is not None:
            episode.attention.append(_by_step(attended[0]))
        probabilities = split_outputs(output)[0].exp().cpu()
        action = int(torch.multinomial(probabilities[0], 1, generator=generator))
        transition = fleet.step(np.array([action]))
        episode.actions.append(action)
        episode.rewards.append(float(transition.reward[0]))
        observation = transition.observation
        if transition.done[0]:
            break
    if not episode.attention or policy.memoryless:
        episode = episode._replace(attention=None)
    return episode, observation


def _by_step(attention: Attention) -> dict[int, float]:
    """Attention by the step at which each state was made; empty slots have none."""
    pairs = zip(attention.origin[0].tolist(), attention.weights[0].tolist(), strict=True)
    return {origin: weight for origin, weight in pairs if origin >= 0}


def _bars(vectors: np.ndarray) -> np.ndarray:
    """Numbers (T, n) as frames of bars: each from light, its smallest, to dark, its largest in these steps.

    They lie below each other, in columns of at most 16. The lightest gray is still seen on white.
    """
    count = vectors.shape[1]
    columns = -(-count // _COLUMN)
    low, high = vectors.min(0), vectors.max(0)
    shade = np.full((len(vectors), columns * -(-count // columns)), 255, np.uint8)
    shade[:, :count] = 225 - 195 * ((vectors - low) / np.maximum(high - low, 1e-12))
    tiles = shade.reshape(len(vectors), columns, -1).swapaxes(1, 2)
    frames = tiles.repeat(_BAR, 1).repeat(max(_WIDTH // columns, 1), 2)
    frames[:, _BAR - 1 : -1 : _BAR] = 255  # a line between two numbers
    return frames[..., None].repeat(3, 3)


def _finding(episode: _Episode, success: float | None) -> Finding:
    kept = min(len(episode.actions), LONGEST)
    total = sum(episode.rewards)
    first = len(episode.actions) - kept
    figures = {"steps": float(len(episode.actions)), "return": total, "first_step": float(first)}
    series = {"actions": np.array(episode.actions[first:]), "rewards": np.array(episode.rewards[first:])}
    sentence = f"It gets {total:.2f} in {counted(len(episode.actions), 'step')}"
    if success is not None:
        sentence += ", a success" if total > success else ", a failure"

    at_decision = None
    decision = len(episode.actions) - 1
    if episode.attention is not None:
        decision = _decision(episode.attention)
        weights = _matrix(episode.attention, first)
        at_decision = weights[decision - first]
        figures["decision"] = float(decision)
        series |= {"attention": weights, "attention_at_decision": at_decision}
        if episode.cue:
            figures["attention_to_cue"] = sum(episode.attention[decision].get(step, 0.0) for step in episode.cue)
    seen = [step for step in episode.cue if step <= decision]
    if seen:
        figures["cue_last_seen"] = float(seen[-1])
    if episode.cue and episode.attention is not None:
        sentence += _attention_sentence(episode.attention[decision], decision, episode.cue)

    steps = _chosen(kept, at_decision)
    pictures = np.stack(episode.pictures[-kept:])
    frames = _bars(pictures) if pictures.ndim == 2 else pictures
    series |= {"frame_steps": first + steps, "frames": frames[steps]}
    return Finding(
        "episode",
        f"{sentence}.",
        "estimated",
        figures=figures,
        series=series,
        title="An episode",
        question="What does it see, and what does it look back at?",
        help=HELP,
        method="one episode with sampled actions, played step by step",
    )


def _attention_sentence(attention: dict[int, float], decision: int, cue: list[int]) -> str:
    """What the deciding step attends to: the steps that showed the cue, or one that remembers it."""
    share = 100 * sum(attention.get(step, 0.0) for step in cue)
    sentence = f"; step {decision} gives {share:.0f} % of its attention to the steps that showed the cue"
    most = max(attention, key=lambda step: attention[step], default=decision)
    before = [step for step in cue if step < most]
    if most in cue or not before or attention[most] < 0.5:
        return sentence
    later = counted(most - before[-1], "step")
    return f"{sentence} and {100 * attention[most]:.0f} % to step {most}, {later} after one of them"


def _matrix(attention: list[dict[int, float]], first: int) -> np.ndarray:
    """(T, T): attention of each step from `first` on, by the step of the state that it is given to."""
    count = len(attention) - first
    weights = np.zeros((count, count), dtype=np.float32)
    for t, by_step in enumerate(attention[first:]):
        for origin, weight in by_step.items():
            if origin >= first:
                weights[t, origin - first] = weight
    return weights


def _decision(attention: list[dict[int, float]]) -> int:
    """The step among the last ones that looks back furthest on average."""
    last = range(max(len(attention) - LAST_STEPS, 0), len(attention))
    return max(last, key=lambda step: sum(weight * (step - origin) for origin, weight in attention[step].items()))


def _chosen(count: int, attention: np.ndarray | None) -> np.ndarray:
    """The steps whose frames are shown: the most attended, the last, and others at even distances."""
    if count <= FRAMES:
        return np.arange(count)
    chosen = {0, count - 1}
    if attention is not None:
        chosen |= set(np.argsort(-attention, kind="stable")[: FRAMES // 2].tolist())
    others = [step for step in range(count) if step not in chosen]
    even = np.linspace(0, len(others) - 1, FRAMES - len(chosen) + 2)[1:-1].round().astype(int)
    return np.array(sorted(chosen | {others[place] for place in even}))
