"""Ctrl-C and a termination signal in the middle of one long call of a compiled loop."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import torch

from mnemoscope.kernels._cpu import library

pytestmark = [
    pytest.mark.skipif(not library.available(torch.float32), reason="no compiled CPU kernels here"),
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]

LIMIT = 4  # seconds; on an idle machine it takes a few milliseconds

# A process that says when a long call begins, and what became of it.
SCRIPT = """
import signal, sys, time
import torch
import mnemoscope

torch.manual_seed(0)
torch.set_num_threads({threads})


def say(*words):
    print(*words, flush=True)


def stopped(call):
    say("begin")
    try:
        call()
    except KeyboardInterrupt:
        return "stopped"
    return "finished"


def terminate(number, frame):
    raise KeyboardInterrupt


short = torch.randn(70, 4, 3)
layer = mnemoscope.MemRNN(3, 128)
lstm = mnemoscope.LSTM(3, 512)
expected = [layer(short)[0], lstm(short)[0]]

# Forward: full attention, and a plain cell.
with torch.no_grad():
    say(stopped(lambda: layer(torch.randn(16_000, 8, 3))))
    say(stopped(lambda: lstm(torch.randn(30_000, 2, 3))))

# Backward, by a termination signal.
signal.signal(signal.SIGTERM, terminate)
loss = layer(torch.randn(2_500, 8, 3))[0].sum()
say(stopped(loss.backward))

# A handler that raises nothing: the call goes on to its end.
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
x = torch.randn(2_000, 8, 3)
say("begin")
with torch.no_grad():
    found = layer(x)[0]
say(f"seen {{len(seen)}}")
same = all(torch.equal(a(short)[0], b) for a, b in zip([layer, lstm], expected))
with torch.no_grad():
    say(same and torch.equal(found, layer(x)[0]))
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_stops_a_long_call(threads: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(threads=threads)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None

    def interrupt(number: int, after: float) -> tuple[str, float]:
        """Send a signal some time after the call has begun; what is said then, and after how many seconds."""
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(after)
        sent = time.perf_counter()
        process.send_signal(number)
        return process.stdout.readline().strip(), time.perf_counter() - sent

    try:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            said, seconds = interrupt(number, after=0.3)
            assert said == "stopped"
            assert seconds < LIMIT
        said, _ = interrupt(signal.SIGINT, after=0.05)
        assert said == "seen 1"
        assert process.stdout.readline() == "True\n"  # the same numbers as without a signal
        assert process.wait() == 0
    finally:
        process.kill()
        process.stdout.close()
