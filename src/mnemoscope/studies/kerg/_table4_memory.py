"""Beyond Table 4: agents trained in the hallways that are too long to see both ends of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mnemoscope.report import Axis, Chart, Panels
from mnemoscope.rl import memory_poses
from mnemoscope.studies import CellValue, Claim, Done, Scale, Study, measure, settings, study, table
from mnemoscope.studies.kerg._agents import (
    COLUMNS,
    GRID_SIZES,
    LEARNT,
    LESSONS,
    frames_needed,
    fresh_episodes,
    guess_bound,
    learning_panels,
    mean_at_most,
    memory_agent,
    memory_helps,
    random_episodes,
)
from mnemoscope.sweeps import Job

ENVS = ("MemoryS11", "MemoryS13", "MemoryS13Random", "MemoryS17Random")
SMALL = ("MemoryS7", "MemoryS9")  # no memory is needed
TARGET = 0.93  # return at which training stops: a few in a hundred fail, and a way takes time
SOLVED = 0.9  # return
FRAMES = 1_000_000
EPISODES, RANDOM_EPISODES = 1_000, 200


def jobs(scale: Scale, seed: int) -> dict[Any, Job]:
    made: dict[Any, Job] = {(env, "poses"): measure(glance, seconds=1, env=env) for env in (*SMALL, *ENVS)}
    made |= {
        (env, "random"): measure(random_episodes, seconds=1.5, env=env, episodes=RANDOM_EPISODES, seed=seed)
        for env in ENVS
    }
    if scale == "quick":
        return made
    for env in ENVS:
        for model in LEARNT:
            run = memory_agent(env, model, seed, FRAMES, TARGET)
            made["run", env, model] = run
            made[env, model] = measure(fresh_episodes, needs=run, seconds=30, env=env, episodes=EPISODES, seed=seed)
    return made


def glance(*, env: str) -> dict[str, float]:
    """The share of an environment's layouts in which the cue and an end are seen at once, and of the poses that do."""
    layouts = memory_poses(env)
    return {
        "layouts": sum(one.seeing > 0 for one in layouts) / len(layouts),
        "poses": sum(one.seeing for one in layouts) / sum(one.poses for one in layouts),
    }


def cells(scale: Scale, done: Done) -> dict[tuple[str, str], CellValue]:
    """Shares of successes; frames that were needed; the share of layouts in which memory is not needed."""
    found: dict[tuple[str, str], CellValue] = {}
    for key, result in done.items():
        if key[0] == "run":
            _, env, model = key
            found[f"{env}, frames", model] = frames_needed(result, "return", SOLVED)
        elif key[1] == "poses":
            found[key[0], "at a glance"] = result["layouts"]
        else:
            found[key] = result.figure("success")
    return found


def charts(scale: Scale, done: Sequence[Done]) -> list[Chart | Panels]:
    panels = learning_panels(ENVS, done, "success", Axis("successes", share=True))
    return [Panels("learning", "Successes in held-out episodes", panels, columns=2)] if panels else []


study(
    Study(
        "kerg/table4-memory",
        "beyond Table 4",
        "agents trained in hallways that are too long to see both ends of at once",
        jobs,
        cells,
        charts,
        claims=(
            Claim(
                "MemoryS11 and S13: from no pose are the cue and an end seen at once",
                ENVS[:2],
                "at a glance",
                at_most=0.0,
                form="ours",
            ),
            Claim(
                "MemoryS7 and S9: from some poses the cue and an end are seen at once",
                SMALL,
                "at a glance",
                at_least=1.0,
                form="ours",
            ),
            Claim(
                "MemoryS13Random and S17Random: cue and end are seen at once in 20 to 50 % of the hallways",
                ENVS[2:],
                "at a glance",
                at_least=0.2,
                at_most=0.5,
                form="ours",
            ),
            Claim(
                "MemoryS11 and S13: RelLSTM succeeds in 90 % of the episodes or more",
                ENVS[:2],
                "RelLSTM",
                at_least=0.9,
                form="ours",
                scale="full",
            ),
            Claim(
                "MemoryS11 and S13: an agent without memory guesses",
                ENVS[:2],
                "memoryless",
                at_most=guess_bound(EPISODES),
                form="ours",
                scale="full",
            ),
            *(
                Claim(
                    f"{env}: without memory successes are 0.52 or less, in the mean over seeds",
                    check=mean_at_most(env, "memoryless", 0.52),
                    over="all",
                    form="ours",
                    scale="full",
                    headline=False,
                )
                for env in ENVS[:2]
            ),
            *(memory_helps(env) for env in ENVS),
        ),
        published=table(
            [*SMALL, *(row for env in ENVS for row in (env, f"{env}, frames"))],
            ("at a glance", *COLUMNS),
            without=[(env, agent) for env in SMALL for agent in COLUMNS]
            + [(f"{env}, frames", column) for env in ENVS for column in ("at a glance", "random")],
            row_title="environment",
            column_title="agent",
            note="not in the paper, which trains in MemoryS7",
        ),
        settings=settings(
            frames=(f"{FRAMES:,}, fewer where solved", "ours"),
            hidden=(", ".join(f"{name} {size}" for name, size in GRID_SIZES.items()), "ours", "equal parameters"),
            lessons=(
                f"{', '.join(LESSONS)} until 95 % of 500 episodes succeed, 200,000 frames at most",
                "ours",
                "its frames are counted, too",
            ),
            actions=("left, right, forward", "ours", "the others do nothing in these worlds but take time"),
            entropy=(0.02, "ours"),
            value_loss=("weight 1", "ours"),
            lr=("Adam, 1e-3, halved at updates 60 and 150", "ours"),
            network=("a relu layer of 128 units before the read-out", "ours"),
            start=("encoder's weights times 3, forget gates' biases + 2", "ours", "cue and ends act together"),
            ppo=("else as in kerg/table4", "ours"),
            episodes=(f"{EPISODES:,} fresh ones", "ours", f"{RANDOM_EPISODES} of the random agent"),
            solved=(f"a held-out return of {SOLVED}", "ours", "the frames before it are in the table"),
        ),
        quick=settings(agents=("random; every pose is enumerated", "ours")),
        would_change="Other settings of PPO.",
        surprise="An agent needs memory in MemoryS11 and S13, and in the Random ones only where the hallway is long: "
        "every pose that an agent can take was tried.",
        modules=("gymnasium", "minigrid"),
        ours=True,
    )
)
