#!/usr/bin/env python3
"""One decode step and one verify step of the same GGUF file: Coppice against llama.cpp, in one run.

    bench/compare_llama_cpp.py BUILD_DIR MODEL.gguf [threads] [context]

Needs the package llama-cpp-python, built from source on this machine so that the peer has the same
instruction sets (its system-info line is printed). The two take turns; the ratio is of the medians
over turns of each one's best time, and GB/s counts the file's tensor bytes once per step.
"""
import ctypes
import os
import statistics
import subprocess
import sys
import time

ROWS = (1, 2, 4, 8, 17, 33)
TURNS = 3
REPETITIONS = 30


def peer_times(llama, model, threads, context):
    """Best milliseconds per number of rows; every row's logits are computed."""
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch = context + 128, 512
    params.n_threads = params.n_threads_batch = threads
    ctx = llama.llama_init_from_model(model, params)
    memory = llama.llama_get_memory(ctx)

    def step(tokens, position):
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        start = time.perf_counter()
        status = llama.llama_decode(ctx, batch)
        llama.llama_synchronize(ctx)
        seconds = time.perf_counter() - start
        llama.llama_batch_free(batch)
        if status != 0:
            sys.exit(f"compare_llama_cpp: llama_decode returned {status}")
        return 1e3 * seconds

    for first in range(0, context, 256):
        step([100 + i for i in range(first, min(first + 256, context))], first)
    times = {}
    for rows in ROWS:
        samples = []
        for _ in range(REPETITIONS):
            samples.append(step([100 + 37 * i for i in range(rows)], context))
            llama.llama_memory_seq_rm(memory, 0, context, -1)
        times[rows] = min(samples)
    llama.llama_free(ctx)
    return times


def own_times(build, path, threads, context):
    command = [os.path.join(build, "bench/bench_cpu_step"), path, str(threads), str(context)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    times = {int(fields[0]): float(fields[1]) for fields in (line.split() for line in lines[2:])}
    return lines[0], times


def read_bandwidth(build, threads):
    command = [os.path.join(build, "bench/bench_cpu_kernels"), str(threads), "cpu", "bandwidth"]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1]
    return float(line.split()[2])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    build, path = sys.argv[1], sys.argv[2]
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count()
    context = int(sys.argv[4]) if len(sys.argv) > 4 else 64
    try:
        import llama_cpp as llama
    except ImportError:
        sys.exit("compare_llama_cpp: llama-cpp-python is not installed (pip install --no-binary "
                 "llama-cpp-python llama-cpp-python)")
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    print("peer:", llama.__version__, llama.llama_print_system_info().decode().strip())
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    own, peer, bandwidth, name = [], [], [], ""
    for _ in range(TURNS):
        bandwidth.append(read_bandwidth(build, threads))
        name, times = own_times(build, path, threads, context)
        own.append(times)
        peer.append(peer_times(llama, model, threads, context))
    ceiling, size = max(bandwidth), os.path.getsize(path)
    print(f"own:  {name}\nthreads {threads}, read bandwidth {ceiling:.1f} GB/s (best of "
          f"{', '.join(f'{b:.1f}' for b in bandwidth)}), file {size / 1e6:.1f} MB")
    print(f"{'rows':>5} {'own ms':>9} {'peer ms':>9} {'ratio':>7} {'own GB/s':>9} {'share':>6}"
          f" {'own rows/s':>11}")
    for rows in ROWS:
        mine = statistics.median(times[rows] for times in own)
        theirs = statistics.median(times[rows] for times in peer)
        rate = size / mine / 1e6
        print(f"{rows:5} {mine:9.2f} {theirs:9.2f} {theirs / mine:6.2f}x {rate:9.1f}"
              f" {100 * rate / ceiling:5.0f}% {1e3 * rows / mine:11.0f}")


if __name__ == "__main__":
    main()
