"""kill -9 at random moments of a run that checkpoints every step: the run always goes on, to the same bits.

    python3 tests/faults/kill_test.py [KILLS [SEED]]        default: 12 kills, the short form that ctest runs

A kill comes either after a random time (between nothing and the length of a whole run) or, every third, in front of a
random file call of a save. Prints what was hit."""
import os
import random
import shutil
import subprocess
import sys
import time
import unittest

import program

KILLS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 12
SEED = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 1
STEPS = 40


class Kill(program.FaultTest):
    def test_killed_at_any_moment_a_run_ends_with_the_same_bits(self):
        recipe = self.recipe(steps=STEPS, adapter={"lora_dropout": 0.1}, train={"save_every": 1, "eval_every": 7},
                             data={"eval": str(self.data("eval.jsonl", rows=3))})
        began = time.monotonic()
        ended = program.run("train", recipe, f"output.dir={self.folder / 'whole'}")
        seconds = time.monotonic() - began
        self.assertEqual(ended.code, 0, ended.err)
        whole = self.result(self.folder / "whole")

        chance = random.Random(SEED)
        kills = runs = resumed = fallbacks = swept = early = 0
        while kills < KILLS:
            shutil.rmtree(self.folder / "out", ignore_errors=True)
            runs += 1
            while True:
                extra = {}
                by_call = chance.random() < 0.34
                if by_call:
                    extra = {"NIBBLE_FAULT_ROOT": str(self.folder / "out"), "NIBBLE_FAULT_HOW": "KILL",
                             "NIBBLE_FAULT_AT": str(chance.randrange(0, 600))}
                child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL,
                                         stderr=open(self.folder / "stderr", "wb"), env=program.environment(extra))
                if not by_call and kills < KILLS:
                    try:
                        child.wait(chance.uniform(0, seconds * 0.6))
                    except subprocess.TimeoutExpired:
                        child.kill()
                code = child.wait(120)
                text = (self.folder / "stderr").read_text(errors="replace")
                resumed += "continuing after step" in text
                fallbacks += "falling back" in text
                if code == 0:
                    break
                self.assertEqual(code, -9, text)
                kills += 1
                early += not (self.folder / "out/checkpoints").exists()
                swept += bool(list((self.folder / "out/checkpoints").glob(".tmp-*")))
            self.assertEqual(self.result(), whole, f"after {kills} kills")
            self.assertEqual(list(self.folder.glob("out/**/.tmp-*")), [])
        print(f"\n{kills} kills in {runs} runs of {STEPS} steps: {resumed} times continued, {early} kills before the first "
              f"checkpoint, {swept} in the middle of a save, {fallbacks} fallbacks; always the same bits")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
