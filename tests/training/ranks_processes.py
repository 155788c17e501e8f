"""Processes that share a run, started as torchrun starts them, but from a server that has imported everything once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from mnemoscope.training import Progress, RunConfig, Stop, resume, train

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["mnemoscope.training"])


def warm_up() -> None:
    """Have the imports done, so that the processes to come start at once."""
    process = _processes.Process(target=int)
    process.start()
    process.join()


def start(config: RunConfig, folder: Path | None, world: int, **options: Any) -> list[Any]:
    """Begin or continue a run in `world` processes; return them."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # at a port that nobody else can take
    processes = []
    for rank in range(world):
        # Their server may have been started by a test in which other variables were set.
        arguments = (config.to_dict(), folder, rank, world, store.port, options, dict(os.environ))
        process = _processes.Process(target=_run, args=arguments)
        process.start()
        process.store = store  # it lives as long as they do
        processes.append(process)
    return processes


def finish(processes: Sequence[Any]) -> list[int]:
    """Wait for processes and return their exit codes. Once one has failed the others are killed, as by torchrun."""
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            for process in processes:
                process.join(120)  # another may be about to end by itself
                process.kill()
        time.sleep(0.01)
    return [process.exitcode for process in processes]


def run(config: RunConfig, folder: Path | None, world: int, **options: Any) -> None:
    assert finish(start(config, folder, world, **options)) == [0] * world


def _run(
    config: dict[str, Any],
    folder: Path | None,
    rank: int,
    world: int,
    port: int,
    options: dict[str, Any],
    environment: dict[str, str],
) -> None:
    settings = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    settings |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0}
    if sys.platform == "linux":
        settings["GLOO_SOCKET_IFNAME"] = "lo"  # the host's own name may lead nowhere
    os.environ.clear()
    os.environ |= environment | {name: str(value) for name, value in settings.items()}

    def act(progress: Progress) -> None:
        if options.get("stop_rank") == rank and progress.update == options["stop_at"]:
            raise Stop("enough")
        if options.get("kill_rank") == rank and progress.update == options["kill_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        if folder is not None and (folder / "config.json").exists():
            resume(folder, act)
        else:
            train(RunConfig.from_dict(config), folder, act)
    except Stop:
        os._exit(5)
    except ValueError as error:
        if folder is not None:
            folder.mkdir(exist_ok=True)
            (folder.parent / f"error-{rank}").write_text(str(error))
        os._exit(getattr(error, "exit_code", 2))
