"""Training steps beside processes that keep cores busy: what a core taken away costs.

    python3 benchmarks/busy_machine.py PROGRAM [PROGRAM ...] [--loops 0,1,2,4] [--repeat 2] [-- shape=smollm2-135m mode=qlora ...]

PROGRAM is build/release/bin/train_step, of one tree or of several: they run in turn beside as many endless loops as said, each on
all cores and on one (OMP_NUM_THREADS=1). The numbers are the best tokens/s of the repeats.
"""
import argparse
import contextlib
import os
import subprocess
import sys


@contextlib.contextmanager
def busy(loops):
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


def tokens_per_second(program, words, threads):
    environment = dict(os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {}))
    lines = subprocess.run([program, *words], env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return float(rows[-1][rows[0].index("tokens/s")])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--loops", default="0,1,2,4")
    parser.add_argument("--repeat", type=int, default=2)
    own, words = sys.argv[1:], ["shape=smollm2-135m", "mode=qlora", "tokens=512", "steps=2"]
    if "--" in own:
        own, words = own[:own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    jobs = [(program, threads) for program in options.programs for threads in (None, 1)]
    print(f"`{' '.join(words)}`, tokens/s\n")
    print("| busy loops | " + " | ".join(f"{program}, {'one thread' if threads else 'all cores'}" for program, threads in jobs) + " |")
    print("|---" * (len(jobs) + 1) + "|")
    for loops in map(int, options.loops.split(",")):
        best = dict.fromkeys(jobs, 0.0)
        with busy(loops):
            for _ in range(options.repeat):
                for job in jobs:
                    best[job] = max(best[job], tokens_per_second(job[0], words, job[1]))
        print(f"| {loops} | " + " | ".join(f"{best[job]:.1f}" for job in jobs) + " |", flush=True)


if __name__ == "__main__":
    main()
