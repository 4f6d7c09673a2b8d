"""One long run on samples of varied lengths with checkpoints, evaluations and resume cycles; memory and descriptors must
stay flat.

    python3 tests/faults/soak.py [STEPS [CYCLES]]           default: 4000 steps in 4 cycles
"""
import os
import pathlib
import subprocess
import sys
import time
import unittest

import program

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
CYCLES = int(sys.argv[2]) if len(sys.argv) > 2 else 4


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0


class Soak(program.FaultTest):
    def test_memory_and_descriptors_stay_flat(self):
        recipe = self.recipe(steps=STEPS, adapter={"lora_dropout": 0.1}, train={"save_every": 5, "eval_every": 20},
                             train_on=self.data(rows=200, length=64, shortest=4),
                             data={"eval": str(self.data("eval.jsonl", rows=4))}, output={"keep_best": True})
        seen = []  # (step, MiB, descriptors)
        for cycle in range(CYCLES):
            goal = STEPS * (cycle + 1) // CYCLES
            child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL,
                                     stderr=open(self.folder / "stderr", "wb"), env=program.environment())
            first = len(seen)
            while child.poll() is None:
                time.sleep(0.2)
                try:
                    lines = (self.folder / "out/metrics.jsonl").read_bytes().count(b"\n")
                    row = (lines, resident(child.pid), len(os.listdir(f"/proc/{child.pid}/fd")))
                except OSError:
                    continue
                seen.append(row)
                if cycle + 1 < CYCLES and lines >= goal:
                    child.terminate()
                    break
            code = child.wait(120)
            self.assertEqual(code, 0 if cycle + 1 == CYCLES else 75, (self.folder / "stderr").read_text())
            rows = [row for row in seen[first:] if row[1] > 0]
            quarter = rows[len(rows) // 4:]  # after the start
            if len(quarter) > 8:
                half = len(quarter) // 2
                before, after = (max(row[1] for row in part) for part in (quarter[:half], quarter[half:]))
                print(f"cycle {cycle + 1}: {rows[-1][0]} lines, {before:.1f} then {after:.1f} MiB at most, "
                      f"descriptors {min(r[2] for r in quarter)} to {max(r[2] for r in quarter)}")
                self.assertLess(after, before * 1.02 + 1, "memory grows")
                self.assertLessEqual(max(r[2] for r in quarter[half:]), max(r[2] for r in quarter[:half]) + 1)
        self.assertEqual([line["step"] for line in self.metrics() if line["split"] == "train"], list(range(1, STEPS + 1)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
