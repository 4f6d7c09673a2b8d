"""Training on answers that the model draws: the same bytes however it is run, and one line for rewards that fail."""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

import program
from program import run
from rollouts import DRAWING, JUDGE, SHAPES, RolloutTest


class Rollouts(RolloutTest):
    def test_threads_and_ranks_give_the_same_bytes(self):
        self.assertEqual(run("train", self.rollout_recipe("one")).code, 0)
        first = self.answers("one")
        self.assertEqual(len(first), 8)
        self.assertGreater(len({tuple(answer["completion_ids"]) for answer in first}), 1)
        for answer in first:
            self.assertEqual(len(answer["logprobs"]), len(answer["completion_ids"]))
        self.assertEqual(run("train", self.rollout_recipe("two", train={"threads": 2})).code, 0)
        self.assertEqual(self.adapter("two"), self.adapter("one"))
        for ranks in (2, 4):
            out = f"ranks{ranks}"
            done = run("launch", "-n", ranks, "--", "train", self.rollout_recipe(out))
            self.assertEqual(done.code, 0, done.err)
            self.assertEqual([self.answers(out, step) for step in (1, 4)], [self.answers("one", step) for step in (1, 4)])
            self.assertEqual(self.adapter(out), self.adapter("one"))

    def test_pipelines_and_shards_give_the_same_bytes(self):
        for quantize in ("none", "nf4"):
            for name, ranks, parallel in (("one", 1, {}), ("pipeline", 2, {"pipeline": 2}), ("shard", 2, {"shard": 2}),
                                          ("both", 4, {"replicate": 2, "shard": 2})):
                out = name + quantize
                recipe = self.rollout_recipe(out, objective={"beta": 0.05, "num_iterations": 2}, parallel=parallel,
                                             model={"path": str(self.model), "compute_dtype": "f32", "quantize": quantize})
                words = ("launch", "-n", ranks, "--") if ranks > 1 else ()
                done = run(*words, "train", recipe)
                self.assertEqual(done.code, 0, done.err)
                self.assertEqual(self.answers(out, 3), self.answers("one" + quantize, 3))
                self.assertEqual(self.adapter(out), self.adapter("one" + quantize))

    def test_answers_are_drawn_in_floats(self):
        for name, arithmetic in (("floats", {}), ("int8", {"compute_dtype": "int8"})):
            done = run("train", self.rollout_recipe(name, steps=1, model={"path": str(self.model)} | arithmetic))
            if arithmetic and "has no products in 8 bits" in done.err:
                self.skipTest("this CPU has none")
            self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.answers("int8", 1), self.answers("floats", 1))
        self.assertNotEqual(self.adapter("int8"), self.adapter("floats"))

    def test_every_objective_on_a_base_in_4_bits_gives_one_result(self):
        for kind, objective in (("grpo", {"beta": 0.05}), ("rloo", {}), ("ppo", {"num_ppo_epochs": 2}),
                                ("distillation", {"beta": 0.5})):
            def recipe(out, **sections):
                return self.drawing_recipe(kind, kind + out, objective, steps=2,
                                           model={"path": str(self.model), "compute_dtype": "f32", "quantize": "nf4"}, **sections)

            layouts = {"one": {}, "replicas": {"replicate": 2}, "four": {"replicate": 4}, "pipeline": {"pipeline": 2},
                       "shard": {"shard": 2}, "both": {"pipeline": 2, "shard": 2}}
            for name, parallel in layouts.items():
                ranks = 1
                for degree in parallel.values():
                    ranks *= degree
                words = ("launch", "-n", ranks, "--") if ranks > 1 else ()
                done = run(*words, "train", recipe(name, train={"microbatch_size": 1, "accumulate": 8}, parallel=parallel))
                self.assertEqual(done.code, 0, done.err)
                self.assertEqual(self.answers(kind + name, 1), self.answers(kind + "one", 1), kind + name)
                self.assertEqual(self.adapter(kind + name), self.adapter(kind + "one"), kind + name)
            for size in (2, 4):
                out = f"size{size}"
                done = run("train", recipe(out, train={"microbatch_size": size, "accumulate": 8 // size}))
                self.assertEqual(done.code, 0, done.err)
                loss, alone = (self.steps(kind + of)[0]["loss"] for of in (out, "one"))
                self.assertAlmostEqual(loss, alone, delta=2e-6 * max(1, abs(alone)), msg=kind + out)

    def test_answers_are_compared_with_a_reference_of_their_own(self):
        def learns(out, objective, ranks=1, whole=False, **sections):
            path = self.rollout_recipe(out, steps=3, rewards=SHAPES, objective=objective, **sections)
            recipe = json.loads(path.read_text())
            if whole:
                del recipe["adapter"]
            path.write_text(json.dumps(recipe))
            done = run(*(("launch", "-n", ranks, "--") if ranks > 1 else ()), "train", path)
            self.assertEqual(done.code, 0, done.err)
            return self.answers(out, 3) if whole else (self.answers(out, 3), self.adapter(out))

        for kind, objective in (("grpo", {"beta": 0.1}), ("rloo", {"beta": 0.1}), ("ppo", {"num_ppo_epochs": 1})):
            # A new adapter adds nothing: what it began as is the base.
            off = learns(kind + "off", {"type": kind, **objective})
            for name, reference in (("initial", "initial"), ("directory", str(self.model))):
                self.assertEqual(learns(kind + name, {"type": kind, **objective, "reference": reference}), off, kind + name)
            # A continued one began elsewhere.
            started = {"path": str(self.folder / f"{kind}off" / "adapter")}
            own = learns(kind + "continued", {"type": kind, **objective, "reference": "initial"}, adapter=started)
            first = self.answers(kind + "continued", 1)
            self.assertTrue(all(answer["ref_logprobs"] == answer["old_logprobs"] for answer in first) if kind != "grpo" else
                            self.steps(kind + "continued")[0]["kl"] == 0)
            self.assertNotEqual(own, learns(kind + "base", {"type": kind, **objective}, adapter=started))
            for name, ranks, parallel in (("two", 2, {}), ("pipeline", 2, {"pipeline": 2}), ("shard", 2, {"shard": 2})):
                self.assertEqual(learns(kind + name, {"type": kind, **objective, "reference": "initial"}, ranks,
                                        adapter=started, parallel=parallel), own, kind + name)
            # Without an adapter: the model as it began.
            answers = learns(kind + "full", {"type": kind, **objective}, whole=True)
            self.assertTrue(all(answer["ref_logprobs"] for answer in answers))

    def test_rewards_that_never_differ_are_reported(self):
        words = "the rewards to no prompt have differed"
        level, given = [{"type": "regex", "pattern": "no such answer"}], self.folder / "given.jsonl"
        done = run("train", self.rollout_recipe("level", steps=6, rewards=level))
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(done.err.count(words), 1, done.err)
        done = run("train", self.rollout_recipe("uneven", steps=6))
        self.assertNotIn(words, done.err)
        with open(given, "w") as file:
            for i in range(16):
                file.write(json.dumps({"prompt_ids": [1, 5 + i // 4], "completion_ids": [4, 2],
                                       "reward": i % 4 if i // 4 == 1 else 0.5}) + "\n")
        recipe = self.rollout_recipe("given", rewards=[], rollout={"completions": 4, "max_new_tokens": 12, "file": str(given)})
        for command in ("validate", "preview", "train"):
            done = run(command, recipe)
            self.assertEqual(done.code, 0, done.err)
            self.assertIn("the answers to 3 of 4 prompts have rewards that do not differ", done.err + done.out, command)

    def test_microbatches_give_the_same_loss(self):
        losses = []
        for size, accumulate in ((8, 1), (4, 2), (2, 4)):
            out = f"size{size}"
            recipe = self.rollout_recipe(out, steps=1, train={"microbatch_size": size, "accumulate": accumulate},
                                         objective={"beta": 0.1, "num_iterations": 1})
            self.assertEqual(run("train", recipe).code, 0)
            losses.append(json.loads((self.folder / out / "metrics.jsonl").read_text().splitlines()[0])["loss"])
        self.assertAlmostEqual(losses[0], losses[1], delta=1e-6)
        self.assertAlmostEqual(losses[0], losses[2], delta=1e-6)

    def test_a_stopped_run_ends_with_the_same_bytes(self):
        objective = {"num_iterations": 2}
        self.assertEqual(run("train", self.rollout_recipe("whole", steps=6, objective=objective)).code, 0)
        # In the middle of a block (after step 3), and while the third block is judged (after step 4): the judge waits there.
        gate, waits = self.folder / "gate", self.folder / "waits"
        recipe = self.rollout_recipe("stopped", steps=6, objective=objective,
                                     rewards=[self.waiting_judge(16, gate, waits)], train={"save_every": 3})
        child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, env=program.environment())
        self.addCleanup(child.kill)
        saved = self.folder / "stopped" / "checkpoints" / "step-3"
        self.wait_until(lambda: (waits.exists() and saved.exists()) or child.poll() is not None)
        self.assertTrue(saved.exists())
        child.kill()
        child.wait()
        gate.touch()
        self.assertEqual(run("train", recipe).code, 0, "goes on after step 3, with the answers of the checkpoint")
        self.assertEqual(self.adapter("stopped"), self.adapter("whole"))

    def test_a_signal_while_answers_are_drawn_keeps_them(self):
        recipe = self.rollout_recipe("whole", steps=3)
        self.assertEqual(run("train", recipe).code, 0)
        recipe = self.rollout_recipe("stopped", steps=3)
        child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, env=program.environment())
        self.addCleanup(child.kill)
        self.wait_until(lambda: (self.folder / "stopped" / "rollouts" / "step-1.jsonl").exists() or
                        child.poll() is not None)
        child.send_signal(signal.SIGTERM)
        self.assertIn(child.wait(), (75, 0))
        self.assertEqual(run("train", recipe).code, 0)
        self.assertEqual(self.adapter("stopped"), self.adapter("whole"))

    def shared_recipe(self, out, size, objective):
        """Answers to prompts that are long enough to stand once for all of them in a microbatch of more than one."""
        rollouts = self.folder / "given.jsonl"
        with open(rollouts, "w") as file:
            for i in range(8):
                prompt = [1] + [(7 * t * t + i // 4) % 60 + 3 for t in range(20)]
                answer = [(5 * t + 3 * i) % 60 + 3 for t in range(1 + i % 3)] + [2]
                old = [-5.0 - 0.1 * (i % 3) for _ in answer]
                file.write(json.dumps({"prompt_ids": prompt, "completion_ids": answer, "reward": i % 5,
                                       "old_logprobs": old}) + "\n")
        return self.rollout_recipe(out, steps=1, rewards=[], objective=objective,
                                   rollout={"completions": 4, "max_new_tokens": 12, "file": str(rollouts)},
                                   train={"microbatch_size": size, "accumulate": 8 // size})

    def test_a_prompt_that_stands_once_gives_the_loss_and_gradients_of_many(self):
        for objective in ({"beta": 0.1}, {"importance_sampling_level": "sequence"}, {"type": "rloo"}):
            found = {}
            for size in (1, 2, 4, 8):
                gradients = self.folder / f"{size}.safetensors"
                done = run("gradients", "--recipe", self.shared_recipe(f"shared{size}", size, objective), "--out", gradients)
                self.assertEqual(done.code, 0, done.err)
                header, data = program.read_safetensors(gradients)
                found[size] = json.loads(done.out), {
                    name: struct.unpack(f"<{(of['data_offsets'][1] - of['data_offsets'][0]) // 4}f",
                                        data[slice(*of["data_offsets"])])
                    for name, of in header.items() if name != "__metadata__"}
            (alone, apart) = found[1]
            for size in (2, 4, 8):
                printed, together = found[size]
                self.assertAlmostEqual(printed["loss"], alone["loss"], delta=2e-6 * max(1, abs(alone["loss"])))
                for name, value in alone["metrics"].items():
                    self.assertAlmostEqual(printed["metrics"][name], value, delta=1e-5 * max(1, abs(value)), msg=name)
                for name, values in apart.items():
                    largest = max(map(abs, values))
                    for a, b in zip(values, together[name]):
                        self.assertAlmostEqual(a, b, delta=2e-5 * largest + 1e-9, msg=name)

    def ends_by(self, number, recipe, out, fault, state):
        """Sends the signal to a run that stops itself in front of a file call, and says how it ended."""
        child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 env=program.environment({"NIBBLE_FAULT_ROOT": str(out), "NIBBLE_FAULT_HOW": "STOP", **fault}))
        self.addCleanup(child.kill)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status), "it ended before")
        self.assertTrue(state())
        child.send_signal(number)
        child.send_signal(signal.SIGCONT)
        return child.wait()

    def test_killed_while_it_draws_or_learns_a_run_ends_with_the_same_bytes(self):
        steps = 15
        for kind, (uses, _) in DRAWING.items():
            def recipe(out):
                return self.drawing_recipe(kind, out, steps=steps, train={"save_every": 2})

            done = run("train", recipe("whole" + kind))
            self.assertEqual(done.code, 0, done.err)
            whole = self.bits(self.folder / ("whole" + kind))
            for number in (signal.SIGKILL, signal.SIGTERM):
                for draws in (True, False):
                    out = f"{kind}{number}{draws}"
                    # in front of the answers of step 5; of the line of step 6
                    fault = {"NIBBLE_FAULT_CALLS": "rename", "NIBBLE_FAULT_IN": "rollouts/", "NIBBLE_FAULT_AT": str(4 // uses)} if (
                        draws) else {"NIBBLE_FAULT_CALLS": "write", "NIBBLE_FAULT_IN": "metrics.jsonl", "NIBBLE_FAULT_AT": "5"}

                    def in_hand():
                        made = len((self.folder / out / "metrics.jsonl").read_text().splitlines()) if (
                            self.folder / out / "metrics.jsonl").exists() else 0
                        block = self.folder / out / "rollouts" / f"step-{made // uses * uses + 1}.jsonl"
                        return 2 < made < steps and self.checkpoints(self.folder / out) and block.exists() != draws

                    ended = self.ends_by(number, recipe(out), self.folder / out, fault, in_hand)
                    self.assertIn(ended, (-9,) if number == signal.SIGKILL else (75, 0), out)
                    done = run("train", recipe(out))
                    self.assertEqual(done.code, 0, done.err)
                    self.assertEqual(self.bits(self.folder / out), whole, out)

    def test_ppo_gives_the_same_bytes_however_it_is_run(self):
        def recipe(out, objective=None, train=None, **sections):
            return self.rollout_recipe(out, steps=5, objective={"type": "ppo", "num_ppo_epochs": 2, "num_mini_batches": 2,
                                                                **(objective or {})},
                                       train=train, **{"rollout": {"completions": 1, "max_new_tokens": 12}, **sections})

        def both(out):
            value = self.folder / out / "value_adapter" / "adapter_model.safetensors"
            return self.adapter(out), value.read_bytes()

        done = run("train", recipe("one"))
        self.assertEqual(done.code, 0, done.err)
        self.assertNotEqual(*both("one"))
        for name, ranks, parallel in (("two", 2, {}), ("pipeline", 2, {"pipeline": 2}), ("shard", 2, {"shard": 2})):
            done = run("launch", "-n", ranks, "--", "train", recipe(name, parallel=parallel))
            self.assertEqual(done.code, 0, done.err)
            self.assertEqual(both(name), both("one"), name)
            self.assertEqual(self.answers(name, 5), self.answers("one", 5))
        # Stopped within a block (4 steps use it), and continued; the judge of the second block waits meanwhile.
        gate, waits = self.folder / "gate", self.folder / "waits"
        child = subprocess.Popen([program.PROGRAM, "train",
                                  str(recipe("stopped", rewards=[self.waiting_judge(8, gate, waits)], train={"save_every": 3}))],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=program.environment())
        self.addCleanup(child.kill)
        saved = self.folder / "stopped" / "checkpoints" / "step-3"
        self.wait_until(lambda: (waits.exists() and saved.exists()) or child.poll() is not None)
        child.kill()
        child.wait()
        gate.touch()
        done = run("train", self.folder / "stopped.json")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(both("stopped"), both("one"))

    def test_tokens_count_once_for_all_steps_that_learn_from_them(self):
        for kind, objective, lines in (("grpo", {"num_iterations": 2}, 8), ("ppo", {"num_ppo_epochs": 2, "num_mini_batches": 2}, 8),
                                       ("rloo", {}, 8)):
            done = run("train", self.rollout_recipe(kind, steps=8, objective={"type": kind, **objective}))
            self.assertEqual(done.code, 0, done.err)
            counted = 0
            for step in self.steps(kind):
                if (self.folder / kind / "rollouts" / f"step-{step['step']}.jsonl").exists():
                    counted += sum(len(a["prompt_ids"]) + len(a["completion_ids"]) for a in self.answers(kind, step["step"]))
                if kind != "ppo" or step["step"] % 4 != 1:  # whose first step learns from a half
                    self.assertEqual(step["num_tokens"], counted)
                if kind == "ppo":
                    self.assertEqual(step["episode"], (step["step"] + 3) // 4 * lines)

    def test_the_time_of_a_step_has_that_of_its_answers(self):
        slow = JUDGE.replace("import json, sys", "import json, sys, time").replace("    print", "    time.sleep(0.01)\n    print")
        self.assertEqual(run("train", self.rollout_recipe(steps=3, rewards=[self.judge(slow)])).code, 0)
        for step in self.metrics(self.folder / "out"):
            self.assertGreaterEqual(step["step_time"], 0.01 * len(self.answers("out", step["step"])))

    def test_ppo_gives_one_loss_for_any_microbatch(self):
        losses = []
        for size, accumulate in ((8, 1), (4, 2), (2, 4)):
            out = f"size{size}"
            recipe = self.rollout_recipe(out, steps=2, rollout={"completions": 1, "max_new_tokens": 12},
                                         objective={"type": "ppo", "num_ppo_epochs": 2},
                                         train={"microbatch_size": size, "accumulate": accumulate})
            done = run("train", recipe)
            self.assertEqual(done.code, 0, done.err)
            rows = [json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
            losses.append([row["loss"] for row in rows])
            for name in ("objective/kl", "objective/scores", "loss/value_avg", "val/ratio", "reward"):
                self.assertIn(name, rows[0])
            self.assertEqual(rows[0]["val/ratio"], 1, "the policy that wrote the answers is the one that is trained")
        for other in losses[1:]:
            for a, b in zip(losses[0], other):
                self.assertAlmostEqual(a, b, delta=1e-6)

    def test_a_reward_model_scores_answers(self):
        pairs = self.folder / "pairs.jsonl"
        pairs.write_text("".join(json.dumps({"prompt_ids": [1, 5 + i], "chosen_ids": [7, 9, 2], "rejected_ids": [8, 4, 2]}) + "\n"
                                 for i in range(4)))
        settings = {"model": {"path": str(self.model), "compute_dtype": "f32"}, "adapter": {"r": 4},
                    "objective": {"type": "reward"}, "data": {"train": str(pairs), "max_length": 32},
                    "train": {"steps": 2, "microbatch_size": 2}, "optimizer": {"lr": 1e-2},
                    "output": {"dir": str(self.folder / "scorer")}}
        path = self.folder / "scorer.json"
        path.write_text(json.dumps(settings))
        done = run("train", path)
        self.assertEqual(done.code, 0, done.err)
        scorer = str(self.folder / "scorer" / "adapter")
        recipe = json.loads(self.rollout_recipe("judged", steps=1, rollout={"completions": 1, "max_new_tokens": 6},
                                                objective={"type": "ppo", "reward_model": scorer, "value_adapter": scorer,
                                                           "num_ppo_epochs": 1}).read_text())
        del recipe["rewards"]
        path = self.folder / "judged.json"
        path.write_text(json.dumps(recipe))
        done = run("train", path)
        self.assertEqual(done.code, 0, done.err)
        answers = self.answers("judged")
        texts = self.folder / "texts.jsonl"
        texts.write_text("".join(json.dumps({"input_ids": a["prompt_ids"] + a["completion_ids"], "label": 0}) + "\n"
                                 for a in answers))
        scores = self.folder / "scores.jsonl"
        done = run("score", "--model", self.model, "--adapter", scorer, "--data", texts, "--format", "labeled",
                   "--compute-dtype", "f32", "--out", scores)
        self.assertEqual(done.code, 0, done.err)
        for answer, line in zip(answers, scores.read_text().splitlines()):
            score = json.loads(line)["score"]
            self.assertAlmostEqual(answer["rewards"]["reward_model"], score[0] if isinstance(score, list) else score, delta=1e-6)
            # Score head and value model start as the same adapter: the value behind an answer is its score.
            self.assertAlmostEqual(answer["values"][-1], answer["reward"], delta=1e-5)

    def test_a_signal_while_a_command_judges_is_answered_at_once(self):
        self.assertEqual(run("train", self.rollout_recipe("whole", steps=3)).code, 0)
        gate, waits = self.folder / "gate", self.folder / "waits"
        recipe = self.rollout_recipe("stopped", steps=3, rewards=[self.waiting_judge(8, gate, waits)])
        child = subprocess.Popen([program.PROGRAM, "train", str(recipe)], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, env=program.environment(), text=True)
        self.addCleanup(child.kill)
        self.wait_until(lambda: waits.exists() or child.poll() is not None)
        child.send_signal(signal.SIGTERM)
        said = child.communicate()[1]  # the gate stays closed: the judge of step 2 never answers
        self.assertEqual(child.returncode, 75, said)
        self.assertIn("stopped after step 1, checkpoint saved", said)
        gate.touch()
        self.assertEqual(run("train", recipe).code, 0)
        self.assertEqual(self.answers("stopped", 2), self.answers("whole", 2))
        self.assertEqual(self.adapter("stopped"), self.adapter("whole"))

    def test_the_reward_rises(self):
        odd = self.judge("import json, sys\nfor line in sys.stdin:\n    ids = json.loads(line)['completion_ids']\n"
                         "    print(sum(i % 2 for i in ids) / len(ids), flush=True)\n")
        path = self.rollout_recipe("learns", steps=40, rewards=[odd], optimizer={"lr": 1e-2, "schedule": "constant"},
                                   train={"microbatch_size": 16, "accumulate": 2})
        recipe = json.loads(path.read_text())
        del recipe["adapter"]  # the tiny model's frozen head can say next to nothing
        path.write_text(json.dumps(recipe))
        self.assertEqual(run("train", path).code, 0)
        lines = (self.folder / "learns" / "metrics.jsonl").read_text().splitlines()
        rewards = [json.loads(line)["reward"] for line in lines]
        self.assertLess(rewards[0], 0.6)
        self.assertGreater(min(rewards[-5:]), 0.9, "answers of odd ids")

    def refused(self, rewards, *words, code=3):
        done = run("train", self.rollout_recipe("bad", rewards=rewards))
        self.assertEqual(done.code, code, done.err)
        line = done.err.splitlines()[-1]
        self.assertTrue(line.startswith("error: "), line)
        for word in words:
            self.assertIn(word, line)

    def test_rewards_that_fail_end_in_one_line(self):
        self.refused([self.judge("import sys\nsys.exit(3)")], "rewards (command)", "exit code 3", "0 of 8 answers")
        self.refused([self.judge("print('fine')")], "fine", "not a number or null")
        self.refused([{**self.judge("import time\ntime.sleep(1e6)"), "timeout_seconds": 0.2}], "timeout_seconds (0.2)")
        self.refused([{"type": "command", "argv": ["/no/such/judge"]}], "cannot be started", code=4)
        self.refused([self.judge("import sys\nfor _ in sys.stdin: print(1e308, flush=True)")], "rewards: one is 1e+308")
        self.refused([{"type": "exact", "column": "solution"}],
                     f'{self.prompts}:1:1: has no field "solution" for rewards (exact); the record has "prompt')
        self.refused([{"type": "exact", "colum": "answer"}], "did you mean column?", code=2)
        self.refused([{**self.judge("x = bytearray(1 << 31)\n" + JUDGE), "memory_bytes": 1 << 30}], "exit code 1")

    def test_a_reward_that_closes_its_output_and_stays_ends_in_one_line(self):
        stays = "import os, time\nos.close(1)\ntime.sleep(1e6)"
        self.refused([{**self.judge(stays), "timeout_seconds": 0.2}], "timeout_seconds (0.2)", "0 of 8 answers")

    def test_exit_codes_are_known_to_a_program_that_was_started_with_children_ignored(self):
        ignored = {"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}
        done = run("train", self.rollout_recipe(rewards=[self.judge("import sys\nsys.exit(3)")]), **ignored)
        self.assertEqual(done.code, 3, done.err)
        self.assertIn("ended with exit code 3", done.err.splitlines()[-1])

    def test_a_reward_that_fails_costs_no_step(self):
        whole = run("train", self.rollout_recipe("whole"))
        self.assertEqual(whole.code, 0, whole.err)
        dies = JUDGE.replace("for line in sys.stdin:", "for n, line in enumerate(sys.stdin):\n    if n == 20: sys.exit(7)")
        recipe = self.rollout_recipe("out", rewards=[self.judge(dies)])
        failed = run("train", recipe)
        self.assertEqual(failed.code, 3, failed.err)
        self.assertIn("ended with exit code 7 after 4 of 8 answers", failed.err.splitlines()[-1])
        self.assertIn("step-2", failed.out + failed.err)
        self.judge()
        mended = run("train", recipe)
        self.assertEqual(mended.code, 0, mended.err)
        self.assertIn("continuing", mended.out + mended.err)
        self.assertEqual(self.adapter(), self.adapter("whole"))

    def test_answers_that_cannot_be_written_cost_no_step(self):
        for out in ("whole", "out"):
            fault = {"NIBBLE_FAULT_ROOT": str(self.folder / "out"), "NIBBLE_FAULT_CALLS": "write", "NIBBLE_FAULT_IN": "rollouts",
                     "NIBBLE_FAULT_AT": "1", "NIBBLE_FAULT_HOW": "ENOSPC"} if out == "out" else {}
            done = run("train", self.rollout_recipe(out), env=fault)
            self.assertEqual(done.code, 0, done.err)
        self.assertIn("warning: answers are not written, training goes on without that: ", done.err)
        self.assertFalse((self.folder / "out/rollouts/step-2.jsonl").exists())
        self.assertEqual(self.adapter(), self.adapter("whole"))

    def test_log_probabilities_above_0_end_in_one_line(self):
        given = self.folder / "given.jsonl"
        given.write_text((json.dumps({"prompt_ids": [1], "completion_ids": [4, 2], "reward": 1, "old_logprobs": [-1, 0.5]}) + "\n") * 8)
        done = run("train", self.rollout_recipe("bad", rewards=[], rollout={"completions": 4, "max_new_tokens": 12, "file": str(given)}))
        self.assertEqual(done.code, 3, done.err)
        self.assertIn('given.jsonl:1:1: has 0.5 in "old_logprobs"; a log-probability is not above 0', done.err.splitlines()[-1])

    def test_answers_to_another_prompt_than_the_others_end_in_one_line(self):
        given = self.folder / "given.jsonl"
        answers = [{"prompt_ids": [1, 5 + (i == 2)], "completion_ids": [4, 2], "reward": i} for i in range(8)]
        given.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
        done = run("validate", self.rollout_recipe("bad", rewards=[], rollout={"completions": 4, "max_new_tokens": 12,
                                                                               "file": str(given)}))
        self.assertEqual(done.code, 3, done.err)
        self.assertIn(f"{given}:3:1: has another prompt than the one before; give 4 answers", done.err.splitlines()[-1])

    def test_prompts_longer_than_the_model_end_in_one_line_before_anything_is_drawn(self):
        limit = json.loads((self.model / "config.json").read_text())["max_position_embeddings"]
        self.prompts.write_text(json.dumps({"prompt_ids": [1] + [5] * limit, "answer": "1"}) + "\n")
        recipe = self.rollout_recipe("long", data={"train": str(self.prompts), "max_length": 4 * limit})
        for command in ("validate", "train"):
            done = run(command, recipe)
            self.assertEqual(done.code, 3, done.err)
            self.assertIn(f"{self.prompts}:1:1: has a prompt of {limit + 1} tokens, the model was made for {limit}",
                          done.err.splitlines()[-1])

    def test_short_prompts_may_have_a_max_length_beyond_the_model(self):
        done = run("train", self.rollout_recipe("far", data={"train": str(self.prompts), "max_length": 2048}))
        self.assertEqual(done.code, 0, done.err)

    def test_rewards_that_fail_may_be_left_out(self):
        dies = {**self.judge("import sys\nsys.exit(3)"), "null_on_failure": True}
        done = run("train", self.rollout_recipe("out", rewards=[dies, {"type": "number", "column": "answer"}]))
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(done.err.count("ended with exit code 3 after 0 of 8 answers; its rewards are null"), 1, done.err)
        for answer in self.answers():
            self.assertIsNone(answer["rewards"]["command"])
            self.assertIsNotNone(answer["reward"])

    def test_given_rollouts_are_what_was_drawn(self):
        self.assertEqual(run("train", self.rollout_recipe("drawn", steps=1)).code, 0)
        given = self.folder / "drawn" / "rollouts" / "step-1.jsonl"
        settings = json.loads(self.rollout_recipe("given", steps=1).read_text())
        del settings["rewards"]
        settings["rollout"]["file"] = str(given)
        recipe = self.folder / "given.json"
        recipe.write_text(json.dumps(settings))
        done = run("train", recipe)
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.adapter("given"), self.adapter("drawn"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
