"""SIGHUP, SIGINT and SIGTERM at random moments of a run: it always goes on, to the same bits.

    NIBBLE_SIGNALS=200 NIBBLE_SIGNAL_SEED=1 python3 tests/faults/signal_campaign_test.py    of each; default: 6, what ctest runs

Every second signal comes after a random time (between nothing and the length of a whole run), the others while the run is
in a random file call. One in eight is followed by a second one at once. Prints in which phases they came."""
import json
import os
import random
import shutil
import signal
import subprocess
import time
import unittest

import program

EACH = int(os.environ.get("NIBBLE_SIGNALS", "6"))
SEED = int(os.environ.get("NIBBLE_SIGNAL_SEED", "1"))
STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
STEPS = 24


def as_in_a_terminal():
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


class Campaign(program.JobTest):
    def bits(self, out):
        """What a finished run leaves, without what the clock and the process say."""
        lines = [{key: value for key, value in line.items() if key not in ("tokens_per_second", "seconds") and "memory" not in key}
                 for line in self.metrics(out)]
        return self.result(out)[0], lines, (out / "samples.jsonl").read_text()

    def long_recipe(self, **sections):
        return self.recipe(steps=STEPS, adapter={"lora_dropout": 0.1}, output={"keep_best": True},
                           train={"accumulate": 2, "save_every": 5, "eval_every": 4, "samples": 2, "early_stop": 50},
                           data={"eval": str(self.data("eval.jsonl", rows=40))}, **sections)

    def phase(self, code, held):
        """Where the signal came, by what the run said and left."""
        said = self.errors()
        if code < 0:
            return "before main()"
        if "stopping" not in said:  # the second one came before the first was answered
            return "a second one at once"
        if "what is not finished is removed" in said:
            done = STEPS in self.checkpoints()
            return "export" if done else "loading" if "continuing" not in said and "training" not in said else "before the first step"
        if "the step in hand is finished" in said:
            return "step"
        state = self.folder / f"out/checkpoints/step-{self.checkpoints()[-1]}/state.json"
        left = json.loads(state.read_text()).get("unfinished")
        return {"evaluation": "evaluation", "samples": "sampling"}.get(left, "save")

    def stop(self, child, chance, number, seconds, held):
        """Sends the signal; False when the run was faster."""
        if held:
            while not held.exists() and child.poll() is None:
                time.sleep(0.001)
        else:
            try:
                child.wait(chance.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                pass
        if child.poll() is not None:
            return False
        child.send_signal(number)
        if chance.random() < 0.125:
            child.send_signal(number)
        if held:
            self.wait_until(lambda: "stopping" in self.errors() or child.poll() is not None)
            held.unlink(missing_ok=True)
        return True

    def finished(self, whole, tally):
        self.assertEqual(self.bits(self.folder / "out"), whole, tally)
        self.assertEqual(list(self.folder.glob("**/.tmp-*")), [])
        shutil.rmtree(self.folder / "out")

    def campaign(self, recipe, start):
        began = time.monotonic()
        ended = program.run("train", recipe, "parallel.replicate=1", f"output.dir={self.folder / 'whole'}")
        self.assertEqual(ended.code, 0, ended.err)
        seconds = time.monotonic() - began
        whole = self.bits(self.folder / "whole")
        chance, tally, runs = random.Random(SEED), {}, 0
        for i in range(EACH * len(STOPS)):
            number, held, env = STOPS[i % len(STOPS)], None, {}
            if i // len(STOPS) % 2:
                held = self.folder / "held"
                env = {"NIBBLE_FAULT_ROOT": str(self.folder / "out"), "NIBBLE_FAULT_HOW": "HOLD", "NIBBLE_FAULT_HELD": str(held),
                       "NIBBLE_FAULT_AT": str(chance.randrange(0, 400))}
            child = start(env)
            sent = self.stop(child, chance, number, seconds, held)
            code = child.wait(program.LIMIT)
            if held:
                held.unlink(missing_ok=True)
            self.assertNotIn("error:", self.errors())
            if code == 0:  # done, or the signal came after the last thing it did
                self.finished(whole, tally)
                runs += 1
                continue
            self.assertTrue(sent, self.errors())
            self.assertIn(code, (75, -number), self.errors())
            key = (signal.Signals(number).name, self.phase(code, held))
            tally[key] = tally.get(key, 0) + 1
        self.assertEqual(start({}).wait(program.LIMIT), 0, self.errors())
        self.finished(whole, tally)
        print(f"\none process: {sum(tally.values())} signals in {runs + 1} runs of {STEPS} steps, always the same bits: "
              + ", ".join(f"{count} {name} in {phase}" for (name, phase), count in sorted(tally.items())), flush=True)

    def test_one_process_stopped_at_any_moment_ends_with_the_same_bits(self):
        recipe = self.long_recipe()

        def start(env):
            with open(self.folder / "stderr", "wb") as file:
                return subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL, stderr=file,
                                        env=program.environment(env), preexec_fn=as_in_a_terminal)

        self.campaign(recipe, start)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_two_ranks_stopped_at_any_moment_end_with_the_bits_of_one(self):
        recipe = self.long_recipe(parallel={"replicate": 2, "timeout_seconds": 10 * program.LIMIT})

        def start():  # a file call that does not return would hold both ranks: only random times
            return self.launch(2, "train", recipe, preexec_fn=as_in_a_terminal)

        began = time.monotonic()
        self.assertEqual(start().wait(program.LIMIT), 0, self.errors())
        seconds = time.monotonic() - began
        ended = program.run("train", recipe, "parallel.replicate=1", f"output.dir={self.folder / 'whole'}")
        self.assertEqual(ended.code, 0, ended.err)
        whole, chance, tally, runs = self.bits(self.folder / "whole"), random.Random(SEED), {}, 0
        self.finished(whole, tally)
        for i in range(max(3, EACH // 10 * len(STOPS))):
            number = STOPS[i % len(STOPS)]
            job = start()
            self.stop(job, chance, number, seconds, None)
            code = self.ended(job, f"signal {number}")
            self.wait_until(lambda: not self.processes())
            self.assertNotIn("error:", self.errors())
            if code == 0:
                self.finished(whole, tally)
                runs += 1
                continue
            self.assertIn(code, (75, -number), self.errors())
            tally[signal.Signals(number).name] = tally.get(signal.Signals(number).name, 0) + 1
        self.assertEqual(start().wait(program.LIMIT), 0, self.errors())
        self.finished(whole, tally)
        print(f"\ntwo ranks: {sum(tally.values())} signals in {runs + 2} runs, always the bits of one: {tally}", flush=True)


if __name__ == "__main__":
    unittest.main()
