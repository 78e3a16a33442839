"""The package on a GPU: bits, streams, graphs and times, with torch and, where it is installed, CuPy.

Run it by itself where there is a CUDA device: ``python python/tests/gpu.py``. A wheel is enough, as no test of the checks has a
GPU. It prints a line for each part, and fails if one does.
"""

import os
import re
import sys
import threading
import time
import traceback

import numpy as np
import torch

import gemv
import gemv.torch

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]
SHAPES = [(1, 1), (3, 700), (65, 33), (300, 300), (4096, 1000), (20, 5000)]
mv, mm, bmm = torch.ops.gemv.mv, torch.ops.gemv.mm, torch.ops.gemv.bmm


def random(*shape, dtype):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(*shape, dtype=wide).to(dtype)


def bits():
    """Every type by rows, by columns, between other columns, and at an odd address: the bits of the CPU."""
    products = 0
    for dtype in TYPES:
        for m, n in SHAPES:
            a, x, b = random(m, n, dtype=dtype), random(n, dtype=dtype), random(n, 5, dtype=dtype)
            there, v = a.cuda(), x.cuda()
            alone, many = mv(a, x), mm(a, b)
            odd = torch.empty(m * n + 8, dtype=dtype, device="cuda")[5 : 5 + m * n].view(m, n).copy_(there)
            forms = (there, there.t().contiguous().t(), torch.cat([there, there], 1)[:, :n], odd)
            for form in forms:
                assert torch.equal(mv(form, v).cpu(), alone), (dtype, m, n)
            assert torch.equal(mm(there, b.cuda()).cpu(), many), (dtype, m, n)
            for j in range(5):
                assert torch.equal(mv(there, b.cuda()[:, j]).cpu(), many[:, j]), (dtype, m, n, j)
            products += len(forms) + 6
        a, b = random(7, 30, 50, dtype=dtype), random(7, 50, 3, dtype=dtype)
        assert torch.equal(bmm(a.cuda(), b.cuda()).cpu(), bmm(a, b)), dtype
    return f"{products} products"


def streams():
    """What a stream has queued before is waited for, and the host is not."""
    a, x = torch.randn(2000, 2000, device="cuda"), torch.randn(2000, device="cuda")
    want = mv(a, x).cpu()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.zeros(1 << 28, device="cuda").add_(1)
        got = mv(a, x * 1.0) + 0
    stream.synchronize()
    assert torch.equal(got.cpu(), want)


def functions():
    """gemv.matvec takes and gives tensors on the GPU, and refuses what lies elsewhere."""
    a, x = torch.randn(100, 50, device="cuda"), torch.randn(50, device="cuda")
    y, out = gemv.matvec(a, x), torch.empty(100, device="cuda")
    assert y.is_cuda and torch.equal(y.cpu(), gemv.matvec(a.cpu(), x.cpu()))
    gemv.matvec(a, x, out=out)
    assert torch.equal(out, y)
    try:
        gemv.matvec(a, x.cpu())
    except ValueError as e:
        return str(e)
    raise AssertionError("operands on two devices")


def device_time(work, count=50):
    """Microseconds of the device."""
    best = float("inf")
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            work()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / count * 1e3)
    return best


def graphs():
    """Captured and replayed with another x; its time beside torch.mv's in a graph."""
    times = []
    for m, n in [(4096, 4096), (64, 100000), (100000, 64)]:
        a, x, stream = torch.randn(m, n, device="cuda"), torch.randn(n, device="cuda"), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            mv(a, x), torch.mv(a, x)
        torch.cuda.current_stream().wait_stream(stream)
        ours, theirs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(ours, stream=stream):
            y = mv(a, x)
        with torch.cuda.graph(theirs, stream=stream):
            torch.mv(a, x)
        x.copy_(torch.randn(n))
        ours.replay()
        assert torch.equal(y, mv(a, x)), (m, n)
        times.append(f"{m} x {n}: {device_time(theirs.replay) / device_time(ours.replay):.2f} times torch.mv")
    return ", ".join(times)


def compiled():
    """torch.compile, by itself and with CUDA graphs."""
    a, x = torch.randn(300, 200, device="cuda"), torch.randn(200, device="cuda")
    for mode in (None, "reduce-overhead"):
        f = torch.compile(lambda a, x: mv(a, x) * 2 + 1, fullgraph=True, mode=mode)
        for _ in range(4):
            y = f(a, x).clone()
        assert torch.equal(y, mv(a, x) * 2 + 1), mode


def layers():
    """Gradients, and a layer whose tokens do not depend on the batch."""
    of = {"device": "cuda", "dtype": torch.float64, "requires_grad": True}
    assert torch.autograd.gradcheck(mv, (torch.randn(5, 4, **of), torch.randn(4, **of)))
    layer, tokens = gemv.torch.Linear(300, 40).cuda(), torch.randn(7, 300, device="cuda")
    assert torch.equal(layer(tokens)[3], layer(tokens[3]))


def threads():
    a, x = torch.randn(500, 500, device="cuda"), torch.randn(500, device="cuda")
    want, other = mv(a, x), []
    work = lambda: other.extend(1 for _ in range(200) if not torch.equal(mv(a, x), want))
    all = [threading.Thread(target=work) for _ in range(4)]
    for thread in all:
        thread.start()
    for thread in all:
        thread.join()
    assert not other


def host_times():
    """Microseconds of the host for a call, which does not wait."""
    a, x = torch.randn(256, 256, device="cuda"), torch.randn(256, device="cuda")

    def least(work):
        best = float("inf")
        for _ in range(8):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(2000):
                work()
            best = min(best, (time.perf_counter() - start) / 2000 * 1e6)
        return best

    theirs = least(lambda: torch.mv(a, x))
    ours = {"gemv.matvec": lambda: gemv.matvec(a, x), "torch.ops.gemv.mv": lambda: mv(a, x)}
    return ", ".join(f"{name} {least(work) / theirs:.2f} of torch.mv's" for name, work in ours.items())


def cupy():
    """CuPy's arrays, on its current stream."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    a, x = cupy.random.randn(300, 200, dtype=cupy.float32), cupy.random.randn(200, dtype=cupy.float32)
    want = gemv.matvec(cupy.asnumpy(a), cupy.asnumpy(x))
    y = gemv.matvec(a, x)
    assert type(y) is cupy.ndarray and np.array_equal(cupy.asnumpy(y), want)
    cupy.cuda.get_current_stream().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        assert np.array_equal(cupy.asnumpy(gemv.matvec(a, x)), want)


def destroyed_streams():
    """More streams than are kept, each destroyed after products that have scratch memory, and their handles given out again."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    a, x = cupy.random.randn(64, 100000, dtype=cupy.float32), cupy.random.randn(100000, dtype=cupy.float32)
    want, handles = gemv.matvec(cupy.asnumpy(a), cupy.asnumpy(x)), []
    cupy.cuda.get_current_stream().synchronize()
    for together in (1, 300):
        for _ in range(300 // together):
            streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(together)]
            for stream in streams:
                with stream:
                    y = cupy.asnumpy(gemv.matvec(a, x))
                assert np.array_equal(y, want)
                handles.append(stream.ptr)
            del stream, streams
    return f"{len(handles)} streams of {len(set(handles))} handles"


def overlapping_batches():
    """An out that overlaps a matrix of a later launch is refused before the first one writes."""
    m, n = 8, 8
    whole, x = torch.randn(4 * m * n, device="cuda"), torch.randn(2, n, device="cuda")
    before, a = whole.clone(), whole.view(2, 2, m, n)
    out = whole[2 * m * n :][: 4 * m].view(2, 2, m)
    try:
        gemv.matvec(a, x, out=out)
    except ValueError as e:
        assert "overlaps" in str(e), e
    else:
        raise AssertionError("it is computed")
    assert torch.equal(whole, before)
    gemv.matvec(a[:1], x, out=out[:1])  # in memory that only lies beside
    assert torch.equal(out[:1], gemv.matvec(a[:1].clone(), x))


def refused():
    """A resident array beside a tensor on the same GPU, and JAX's arrays there."""
    a, x = torch.randn(30, 20), torch.randn(20)
    pairs = [(gemv.asarray(a, device="cuda:0"), x.cuda(), "gemv.Array on cuda:0")]
    try:
        import jax

        pairs.append((jax.device_put(a.numpy(), jax.devices("cuda")[0]), x.numpy(), "jax.device_put"))
    except (ImportError, RuntimeError):
        pass
    for one, other, sentence in pairs:
        try:
            gemv.matvec(one, other)
        except ValueError as e:
            assert sentence in str(e), e
        else:
            raise AssertionError(sentence)
    return f"{len(pairs)} pairs"


def resident():
    a, x = np.random.randn(300, 200).astype("f4"), np.random.randn(200).astype("f4")
    assert np.array_equal(gemv.asarray(a, device="cuda:0") @ x, gemv.matvec(a, x))


def packed():
    """Packed matrices beside tensors, on their stream, and by the name of the GPU: the CPU's bits."""
    x = torch.randn(2048, 3)
    for name in gemv.Packed.formats:
        a = gemv.Packed.quantize(name, torch.randn(300, 2048))
        named = a.to_device("cuda:0")
        for kind in (torch.float32, torch.float16, torch.bfloat16):
            of = x.to(kind)
            expected = a @ of
            there = a.to_device(of.cuda())
            assert torch.equal((there @ of.cuda()).cpu(), expected)
            assert torch.equal(gemv.matvec(there[7:], of[:, 1].cuda()).cpu(), expected[7:, 1])
            assert torch.equal(named @ of, expected)
        resident = named @ gemv.asarray(x, device="cuda:0")
        assert np.array_equal(np.asarray(resident), (a @ x).numpy())
    for one, sentence in ((a, "cuda:0 and the host.*to_device"), (named, "two streams of cuda:0.*to_device")):
        try:
            one @ x.cuda()
        except ValueError as e:
            assert re.search(sentence, str(e)), e
        else:
            raise AssertionError(sentence)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        on = x.cuda()
        assert torch.equal((a.to_device(on) @ on).cpu(), a @ x)
    return f"{len(gemv.Packed.formats)} formats"


def main():
    # JAX takes most of a GPU's memory, unless it is told not to.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    torch.manual_seed(0)
    failed = 0
    parts = bits, streams, functions, graphs, compiled, layers, threads, host_times, cupy, resident
    parts += destroyed_streams, overlapping_batches, refused, packed
    for part in parts:
        try:
            print(f"{part.__name__}: {part() or 'as it should be'}", flush=True)
        except Exception:
            failed += 1
            print(f"{part.__name__}: failed", flush=True)
            traceback.print_exc()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
