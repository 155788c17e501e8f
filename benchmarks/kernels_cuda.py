"""Checks and times the CUDA kernels against float64 loops and cuDNN: python benchmarks/kernels_cuda.py [check] [time]."""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mnemoscope.kernels import (
    cuda,  # noqa: F401  registers the kernels
    gradients,  # noqa: F401  registers their gradients
    reference,
)
from mnemoscope.kernels.cuda import layout

ops = torch.ops.mnemoscope
DEVICE = "cuda"


def median_ms(step: Callable[[], object], repeats: int = 7, warmup: int = 2) -> tuple[float, float]:
    """-> milliseconds, peak MB above what was allocated before."""
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), (torch.cuda.max_memory_allocated() - base) / 2**20


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device=DEVICE) * scale


def problem(cell: str, T: int, B: int, n: int, nu: int, rho: int, carried: bool = False) -> dict[str, Tensor | None]:
    G, m = 4 if cell == "lstm" else 1, max(0, nu + rho)
    tensors: dict[str, Tensor | None] = {
        "xp": draw(T, B, G * n), "V": draw(G * n, n, scale=0.5 * n**-0.5), "W_a": draw(n, n, scale=n**-0.5),
        "U_a": draw(n, n, scale=n**-0.5), "v": draw(n, scale=2 * n**-0.5), "b": None, "s0": draw(B, n, scale=0.5),
        "c0": draw(B, n) if cell == "lstm" else None,
    }  # fmt: skip
    filled = torch.rand(B, m, device=DEVICE) < (0.7 if carried else 0)
    tensors["values0"], tensors["keys0"] = draw(B, m, n), draw(B, m, n)
    tensors["origin0"] = torch.where(filled, 1, -1)
    tensors["relevance0"] = torch.where(filled, torch.rand(B, m, device=DEVICE), 0)
    tensors["clock0"] = torch.full((B,), nu + 1 if carried else 0, device=DEVICE)
    return tensors


def relative(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def check_attentive(
    cell: str, phi: str, T: int, B: int, n: int, nu: int, rho: int, mix: str = "sum", carried: bool = True,
    lengths: bool = False, has_ds: bool = True,
) -> float:  # fmt: skip
    given = problem(cell, T, B, n, nu, rho, carried)
    if nu < 0:
        given["values0"], given["keys0"] = draw(B, 3, n), draw(B, 3, n)
        given["origin0"] = torch.zeros(B, 3, dtype=torch.int64, device=DEVICE)
        given["origin0"][:, 1] = -1
        given["relevance0"] = draw(B, 3)
    if phi == "modrelu":
        given["b"] = draw(n, scale=0.1)
    ends = torch.randint(1, T + 1, (B,), device=DEVICE) if lengths else None
    names = [k for k, t in given.items() if t is not None and t.is_floating_point() and k != "relevance0"]
    single = {k: t.requires_grad_(k in names) if t is not None else None for k, t in given.items()}
    out = ops.attentive_forward(*single.values(), cell, phi, nu, rho, mix, 1.0, False, ends, True)
    double = {k: t.detach().double().requires_grad_() if k in names else t for k, t in single.items()}
    keys = [k for k in double if k not in ("relevance0", "clock0")]
    truth = reference.attentive(*(double[k] for k in keys), out[7], cell, phi, nu < 0, mix, ends)
    outer = [draw(T, B, n), draw(T, B, n) if has_ds else None, draw(B, n) if cell == "lstm" else None]
    pairs = [(o, r, g) for o, r, g in zip(out, truth, outer, strict=False) if g is not None]
    mine = torch.autograd.grad([p[0] for p in pairs], [single[k] for k in names], [p[2] for p in pairs], allow_unused=True)
    true = torch.autograd.grad(
        [p[1] for p in pairs], [double[k] for k in names], [p[2].double() for p in pairs], allow_unused=True
    )
    errors = [relative(p[0], p[1]) for p in pairs]
    errors += [relative(a, b) for a, b in zip(mine, true, strict=True) if b is not None and b.abs().max() > 0]
    return max(errors)


def check_plain(family: str, phi: str, T: int, B: int, n: int, lengths: bool = False) -> float:
    G = {"rnn": 1, "rac": 1, "goru": 3, "lstm": 4}[family]
    xp, W, h0 = draw(T, B, G * n), draw(G * n, n, scale=0.7 * n**-0.5), draw(B, n)
    ends = torch.randint(1, T + 1, (B,), device=DEVICE) if lengths else None
    extra = draw(B, n) if family == "lstm" else draw(n, scale=0.1)
    options = {"rnn": (phi, ends), "rac": (ends,), "goru": (ends,), "lstm": (ends,)}[family]
    saving = (True,) if family in ("goru", "lstm") else ()
    single = [t.requires_grad_() for t in (xp, W, h0, extra)]
    out = getattr(ops, f"{family}_forward")(*single, *options, *saving)
    out = (out,) if isinstance(out, Tensor) else out
    double = [t.detach().double().requires_grad_() for t in single]
    truth = getattr(reference, family)(*double, *options)
    outer = [draw(*t.shape) for t in truth]
    mine = torch.autograd.grad(out[: len(truth)], single, outer, allow_unused=True)
    true = torch.autograd.grad(truth, double, [g.double() for g in outer], allow_unused=True)
    errors = [relative(a, b) for a, b in zip(out, truth, strict=False)]
    return max(errors + [relative(a, b) for a, b in zip(mine, true, strict=True) if b is not None])


def check() -> None:
    torch.manual_seed(0)
    cases: list[tuple[str, Callable[[], float]]] = []
    for family in ("rnn", "rac", "goru", "lstm"):
        for n, T, B in ((128, 40, 5), (33, 20, 3), (200, 12, 3), (512, 9, 2)):
            if family == "lstm" and n > 256:
                continue
            for phi in ("tanh", "modrelu") if family == "rnn" else ("tanh",):
                cases.append((f"{family} {phi} n={n}", lambda f=family, p=phi, n=n, T=T, B=B: check_plain(f, p, T, B, n, n == 33)))
    for cell in ("rnn", "lstm"):
        for n, T, B, nu, rho in ((128, 60, 5, 10, 10), (100, 40, 3, 4, 3), (31, 30, 2, 0, 3), (256, 30, 2, 10, 10),
                                 (512, 30, 2, 10, 10), (90, 30, 130, 20, 12)):  # fmt: skip
            if cell == "lstm" and n > 256:
                continue
            cases.append((f"attentive {cell} n={n} nu={nu} rho={rho}",
                          lambda c=cell, n=n, T=T, B=B, nu=nu, rho=rho: check_attentive(
                              c, "modrelu" if n == 100 and c == "rnn" else "tanh", T, B, n, nu, rho, "mean" if n == 31 else "sum",
                              lengths=n == 100, has_ds=n != 128)))  # fmt: skip
    for cell in ("rnn", "lstm"):
        for n, T, B in ((128, 50, 5), (100, 200, 2), (31, 60, 140), (300, 30, 2), (1000, 20, 2)):
            cases.append((f"full {cell} n={n}", lambda c=cell, n=n, T=T, B=B: check_attentive(
                c, "modrelu" if n == 100 and c == "rnn" else "tanh", T, B, n, -1, 0, "mean" if n == 31 else "sum",
                lengths=n == 31, has_ds=n != 128)))  # fmt: skip
    if "small" in sys.argv[1:]:  # under compute-sanitizer, which is slow
        cases = [
            ("rnn", lambda: check_plain("rnn", "tanh", 5, 2, 128)),
            ("rnn over a cluster", lambda: check_plain("rnn", "tanh", 4, 1, 200)),
            ("lstm", lambda: check_plain("lstm", "tanh", 4, 2, 100, True)),
            ("goru", lambda: check_plain("goru", "tanh", 4, 2, 128)),
            ("rac", lambda: check_plain("rac", "tanh", 4, 2, 60)),
            ("relrnn", lambda: check_attentive("rnn", "tanh", 12, 2, 128, 3, 2, lengths=True)),
            ("relrnn nu=0", lambda: check_attentive("rnn", "tanh", 6, 2, 60, 0, 3)),
            ("rellstm", lambda: check_attentive("lstm", "tanh", 9, 2, 128, 3, 2)),
            ("memrnn", lambda: check_attentive("rnn", "tanh", 9, 2, 100, -1, 0, lengths=True)),
            ("memlstm", lambda: check_attentive("lstm", "tanh", 5, 70, 128, -1, 0)),
        ]
    for name, case in cases:
        try:
            error = case()
            print(f"{'ok ' if error < 2e-5 else 'BAD'} {error:.1e} {name}", flush=True)
        except Exception:
            print(f"FAILED {name}: {traceback.format_exc()[-600:]}", flush=True)


class Bench(nn.Module):
    """A layer's worth of work: projection, kernel, gradients of everything."""

    def __init__(self, family: str, n: int, nu: int = 10, rho: int = 10, phi: str = "tanh") -> None:
        super().__init__()
        self.family, self.n, self.nu, self.rho, self.phi = family, n, nu, rho, phi
        G = {"rnn": 1, "rac": 1, "goru": 3, "lstm": 4, "relrnn": 1, "rellstm": 4, "memrnn": 1, "memlstm": 4}[family]
        self.G = G
        scale = n**-0.5
        self.W_ih = nn.Parameter(draw(G * n, 10, scale=0.3))
        self.bias = nn.Parameter(draw(G * n, scale=0.1))
        self.V = nn.Parameter(draw(G * n, n, scale=0.5 * scale))
        self.W_a, self.U_a = nn.Parameter(draw(n, n, scale=scale)), nn.Parameter(draw(n, n, scale=scale))
        self.v, self.b = nn.Parameter(draw(n, scale=scale)), nn.Parameter(draw(n, scale=0.01))

    def forward(self, x: Tensor) -> Tensor:
        xp = F.linear(x, self.W_ih, self.bias)
        B, n = x.shape[1], self.n
        zero = x.new_zeros(B, n)
        if self.family == "rnn":
            return ops.rnn_forward(xp, self.V, zero, self.b, self.phi, None)
        if self.family == "rac":
            return ops.rac_forward(xp, self.V, zero + 1, None, None)
        if self.family == "goru":
            return ops.goru_forward(xp, self.V, zero, self.b, None, True)[0]
        if self.family == "lstm":
            return ops.lstm_forward(xp, self.V, zero, zero, None, True)[0]
        lstm, full = self.family.endswith("lstm"), self.family.startswith("mem")
        nu, rho = (-1, 0) if full else (self.nu, self.rho)
        m = 0 if full else nu + rho
        return ops.attentive_forward(
            xp, self.V, self.W_a, self.U_a, self.v, None, zero, zero if lstm else None, x.new_zeros(B, m, n),
            x.new_zeros(B, m, n), torch.full((B, m), -1, device=x.device), x.new_zeros(B, m),
            torch.zeros(B, dtype=torch.int64, device=x.device), "lstm" if lstm else "rnn", "tanh", nu, rho, "sum", 1.0,
            False, None, True,
        )[0]  # fmt: skip


def timed(name: str, model: Callable[[Tensor], Tensor], n: int, T: int, B: int, base: float | None = None, **options: int) -> float:
    try:
        x, dy = draw(T, B, 10), draw(T, B, n)
        y = model(x)
        del y

        def step() -> None:
            y = model(x)
            y = y[0] if isinstance(y, tuple) else y
            y.backward(dy)
            model.zero_grad(set_to_none=True)

        def forward_only() -> None:
            with torch.no_grad():
                model(x)

        ms, peak = median_ms(step, **options)
        fwd, _ = median_ms(forward_only, **options)
    except Exception:
        print(f"FAILED {name}: {traceback.format_exc()[-600:]}", flush=True)
        return float("nan")
    ratio = f"{ms / base:6.2f}" if base else "      "
    print(f"{name:28s} n={n:4d} B={B:4d} T={T:6d}  {ms:9.2f} ms (fwd {fwd:8.2f})  {1e3 * ms / T:7.2f} us/step  ratio {ratio}"
          f"  peak {peak:7.0f} MB", flush=True)
    return ms


def times() -> None:
    B, T, n = 64, 2020, 128
    lstm = timed("cudnn LSTM", nn.LSTM(10, n).to(DEVICE), n, T, B)
    rnn = timed("cudnn RNN", nn.RNN(10, n).to(DEVICE), n, T, B)
    for family, base in (("rnn", rnn), ("rac", rnn), ("lstm", lstm), ("goru", lstm), ("relrnn", lstm), ("rellstm", lstm)):
        timed(family, Bench(family, n), n, T, B, base)
    timed("rnn modrelu", Bench("rnn", n, phi="modrelu"), n, T, B, rnn)
    for family in ("memrnn", "memlstm"):
        timed(family, Bench(family, n), n, T, B, lstm, repeats=3, warmup=1)
    original = layout._CLUSTERS
    layout._CLUSTERS = {9: (2, 4, 8, 16)}
    layout.limits.cache_clear()
    timed("relrnn C=2", Bench("relrnn", n), n, T, B, lstm)
    timed("rnn C=2", Bench("rnn", n), n, T, B, rnn)
    timed("goru C=2", Bench("goru", n), n, T, B, lstm)
    layout._CLUSTERS = original
    layout.limits.cache_clear()
    for batch in (1, 16, 128, 256):
        base = timed("cudnn LSTM", nn.LSTM(10, n).to(DEVICE), n, T, batch)
        timed("relrnn", Bench("relrnn", n), n, T, batch, base)
        timed("rellstm", Bench("rellstm", n), n, T, batch, base)
    for n in (256, 512):
        T = 1020
        lstm = timed("cudnn LSTM", nn.LSTM(10, n).to(DEVICE), n, T, B)
        rnn = timed("cudnn RNN", nn.RNN(10, n).to(DEVICE), n, T, B)
        timed("rnn", Bench("rnn", n), n, T, B, rnn)
        timed("relrnn", Bench("relrnn", n), n, T, B, lstm)
        timed("goru", Bench("goru", n), n, T, B, lstm)
        if n == 256:
            timed("rellstm", Bench("rellstm", n), n, T, B, lstm)
            timed("lstm", Bench("lstm", n), n, T, B, lstm)
    timed("relrnn", Bench("relrnn", 128), 128, 65536, 64, repeats=2, warmup=1)
    timed("cudnn LSTM", nn.LSTM(10, 128).to(DEVICE), 128, 65536, 64, repeats=2, warmup=1)


if __name__ == "__main__":
    print(torch.__version__, torch.cuda.get_device_name(), "tf32", torch.backends.cuda.matmul.allow_tf32,
          torch.backends.cudnn.allow_tf32, time.strftime("%Y-%m-%d"))
    if "check" in sys.argv[1:]:
        check()
    if "profile" in sys.argv[1:]:
        for family in sys.argv[2:]:
            model, x = Bench(family, 128), draw(200, 64, 10)
            model(x).sum().backward()
            torch.cuda.synchronize()
    if "time" in sys.argv[1:]:
        times()
