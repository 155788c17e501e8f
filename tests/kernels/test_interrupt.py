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

# A process that makes a long call again and again until a signal comes. With a handler that raises nothing it says
# whether the signal came inside a compiled loop, which then was stopped before its end; if not it begins anew. Then
# the handler raises, as Python's own does.
SCRIPT = """
import signal
import torch
import mnemoscope
from mnemoscope.kernels._cpu import library

torch.manual_seed(0)
torch.set_num_threads({threads})
seen, stopped, awaited = [], [], []
goes_on = False
run = library.run


class Stopped(Exception):
    pass


def noted(name, *arguments):
    if name in awaited:
        awaited.clear()
        say("begin")
    came_to_its_end = run(name, *arguments)
    if not came_to_its_end:
        stopped.append(name)
        if not goes_on:
            raise Stopped
    return came_to_its_end


def note(number, frame):
    seen.append(number)


def interrupt(number, frame):
    raise KeyboardInterrupt


def say(*words):
    print(*words, flush=True)


def until_inside(call, loop):
    while loop not in stopped:
        seen.clear()
        stopped.clear()
        awaited.append(loop)
        try:
            while not seen:
                found = call()
        except Stopped:
            found = None
        say("inside" if loop in stopped else "outside")
    stopped.clear()
    return found


def interrupted(call, loop):
    until_inside(call, loop)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    awaited.append(loop)
    try:
        while True:
            call()
    except KeyboardInterrupt:
        say("raised")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)


library.run = noted
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
short = torch.randn(70, 4, 3)
layer = mnemoscope.MemRNN(3, 128)
lstm = mnemoscope.LSTM(3, 512)
expected = [layer(short)[0], lstm(short)[0]]

# Forward: full attention, and a plain cell. Backward.
long, longer = torch.randn(16_000, 8, 3), torch.randn(30_000, 2, 3)
with torch.no_grad():
    interrupted(lambda: layer(long), "attentive_forward")
    interrupted(lambda: lstm(longer), "lstm_forward")
loss = layer(torch.randn(2_500, 8, 3))[0].sum()
interrupted(lambda: loss.backward(retain_graph=True), "attentive_backward")

# A handler that raises nothing: the call goes on to its end.
goes_on = True
x = torch.randn(2_000, 8, 3)
with torch.no_grad():
    found = until_inside(lambda: layer(x)[0], "attentive_forward")
same = all(torch.equal(a(short)[0], b) for a, b in zip([layer, lstm], expected))
with torch.no_grad():
    say(same and torch.equal(found, layer(x)[0]))
"""
SIGNALS = {
    "attentive forward": (signal.SIGINT, ["inside", "raised"]),
    "LSTM forward": (signal.SIGINT, ["inside", "raised"]),
    "attentive backward": (signal.SIGTERM, ["inside", "raised"]),
    "a handler that raises nothing": (signal.SIGINT, ["inside"]),
}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_stops_a_long_call(threads: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(threads=threads)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None

    def interrupt(number: int) -> str:
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(0.1)  # by then it usually is inside the loop; one that comes too soon is repeated
        process.send_signal(number)
        return process.stdout.readline().strip()

    try:
        for what, (number, expected) in SIGNALS.items():
            for word in expected:
                said = (interrupt(number) for _ in range(20))
                assert next((answer for answer in said if answer != "outside"), "outside") == word, what
        assert process.stdout.readline() == "True\n"  # the same numbers as without a signal
        assert process.wait() == 0
    finally:
        process.kill()
        process.stdout.close()
