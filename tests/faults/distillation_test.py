"""Distillation on answers that the student, the teacher or the data give: the same bytes however it is run."""
import json
import unittest

from program import run
from rollouts import RolloutTest


class Distillation(RolloutTest):
    def distillation_recipe(self, out, teacher, steps=4, data=None, **sections):
        return self.rollout_recipe(out, steps=steps, rewards=[], objective={
            "type": "distillation", "beta": 0.5, "teacher_model_name_or_path": str(teacher)}, **{
                "rollout": {"completions": 2, "max_new_tokens": 12}, **({"data": data} if data else {}), **sections})

    def test_a_student_learns_from_given_answers_as_from_data(self):
        teacher = self.other_model()
        given, data = self.folder / "given.jsonl", self.folder / "data.jsonl"
        with open(given, "w") as answers, open(data, "w") as texts:
            for i in range(16):
                prompt = [1] + [(7 * t + i // 2) % 60 + 3 for t in range(2 + i // 2 % 3)]
                answer = [(5 * t + 3 * i) % 60 + 3 for t in range(1 + i % 5)] + [2]
                answers.write(json.dumps({"prompt_ids": prompt, "completion_ids": answer}) + "\n")
                texts.write(json.dumps({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}) + "\n")
        recipe = self.distillation_recipe("drawn", teacher, steps=2, rollout={"completions": 2, "max_new_tokens": 12,
                                                                              "file": str(given)})
        done = run("train", recipe)
        self.assertEqual(done.code, 0, done.err)
        recipe = json.loads(self.distillation_recipe("read", teacher, steps=2).read_text())
        del recipe["rollout"]
        recipe["data"] = {"train": str(data), "format": "tokens", "shuffle": False, "pack": False, "max_length": 32}
        (self.folder / "read.json").write_text(json.dumps(recipe))
        done = run("train", self.folder / "read.json")
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.adapter("drawn"), self.adapter("read"), "whose loss is that of TRL")
        lines = [[json.loads(line) for line in (self.folder / out / "metrics.jsonl").read_text().splitlines()]
                 for out in ("drawn", "read")]
        for drawn, read in zip(*lines):
            self.assertEqual((drawn["loss"], drawn["entropy"]), (read["loss"], read["entropy"]))
            self.assertIn("completions/mean_length", drawn)

    def test_on_policy_distillation_gives_the_same_bytes_however_it_is_run(self):
        teacher = self.other_model()
        done = run("train", self.distillation_recipe("one", teacher))
        self.assertEqual(done.code, 0, done.err)
        first = self.answers("one")
        self.assertEqual(len(first), 8)
        self.assertGreater(len({tuple(answer["completion_ids"]) for answer in first}), 4)
        self.assertNotEqual(self.answers("one", 4), first)
        for name, ranks, parallel in (("two", 2, {}), ("pipeline", 2, {"pipeline": 2}), ("shard", 2, {"shard": 2})):
            done = run("launch", "-n", ranks, "--", "train", self.distillation_recipe(name, teacher, parallel=parallel))
            self.assertEqual(done.code, 0, done.err)
            self.assertEqual(self.answers(name, 4), self.answers("one", 4), name)
            self.assertEqual(self.adapter(name), self.adapter("one"), name)
        done = run("train", self.distillation_recipe("stopped", teacher, steps=2))
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(run("train", self.distillation_recipe("stopped", teacher)).code, 0, "goes on after step 2")
        self.assertEqual(self.adapter("stopped"), self.adapter("one"))

    def answered_data(self, rows=16):
        """Prompts with answers, as a file of tokens."""
        data = self.folder / "answered.jsonl"
        with open(data, "w") as file:
            for i in range(rows):
                prompt = [1] + [(7 * t + i) % 60 + 3 for t in range(2 + i % 3)]
                answer = [(5 * t + 3 * i) % 60 + 3 for t in range(1 + i % 5)] + [2]
                file.write(json.dumps({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}) + "\n")
        return {"train": str(data), "format": "tokens", "shuffle": False, "max_length": 32}

    def mixed_recipe(self, out, teacher, objective, steps=8, **sections):
        recipe = json.loads(self.distillation_recipe(out, teacher, steps=steps, **{
            "data": self.answered_data(), "rollout": {"max_new_tokens": 12}, **sections}).read_text())
        recipe["objective"].update(objective)
        path = self.folder / f"{out}.json"
        path.write_text(json.dumps(recipe))
        return path

    def test_a_student_learns_from_its_own_answers_in_a_share_of_the_steps(self):
        teacher = self.other_model()
        recipe = json.loads(self.mixed_recipe("read", teacher, {}, steps=2).read_text())
        del recipe["rollout"]
        recipe["data"]["pack"] = False
        (self.folder / "read.json").write_text(json.dumps(recipe))
        for done in (run("train", self.folder / "read.json"), run("train", self.mixed_recipe("never", teacher, {"lmbda": 0}, steps=2)),
                     run("train", self.mixed_recipe("one", teacher, {"lmbda": 0.5}))):
            self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.adapter("never"), self.adapter("read"), "the data's answers only")
        of_data = {tuple(answer["completion_ids"]) for answer in self.answers("never")}
        own = [step["on_policy"] for step in self.steps("one")]
        self.assertEqual(set(own), {0, 1})
        for step, drawn in enumerate(own, 1):
            answers = self.answers("one", step)
            self.assertEqual([("logprobs" in answer) for answer in answers], [drawn == 1] * 8)
        self.assertEqual(len(of_data), 8)
        for name, ranks, parallel in (("two", 2, {}), ("pipeline", 2, {"pipeline": 2}), ("shard", 2, {"shard": 2})):
            done = run("launch", "-n", ranks, "--", "train", self.mixed_recipe(name, teacher, {"lmbda": 0.5}, parallel=parallel))
            self.assertEqual(done.code, 0, done.err)
            self.assertEqual(self.adapter(name), self.adapter("one"), name)
        for steps in (3, 8):
            done = run("train", self.mixed_recipe("stopped", teacher, {"lmbda": 0.5}, steps=steps))
            self.assertEqual(done.code, 0, done.err)
        self.assertEqual(self.adapter("stopped"), self.adapter("one"))

    def test_a_student_learns_from_what_the_teacher_writes(self):
        teacher = self.other_model()
        prompts = {"data": {"train": str(self.prompts), "max_length": 32}, "rollout": {"completions": 2, "max_new_tokens": 12}}
        done = run("train", self.distillation_recipe("itself", teacher, steps=1, model={"path": str(teacher), "compute_dtype": "f32"}))
        self.assertEqual(done.code, 0, done.err)
        objective = {"lmbda": 0, "seq_kd": True}
        done = run("train", self.mixed_recipe("one", teacher, objective, **prompts))
        self.assertEqual(done.code, 0, done.err)
        self.assertEqual(*([answer["completion_ids"] for answer in self.answers(out)] for out in ("one", "itself")))
        for name, ranks, parallel in (("two", 2, {}), ("pipeline", 2, {"pipeline": 2}), ("shard", 2, {"shard": 2}),
                                      ("both", 4, {"pipeline": 2, "replicate": 2})):
            done = run("launch", "-n", ranks, "--", "train", self.mixed_recipe(name, teacher, objective, parallel=parallel, **prompts))
            self.assertEqual(done.code, 0, done.err)
            self.assertEqual(self.answers(name, 8), self.answers("one", 8), name)
            self.assertEqual(self.adapter(name), self.adapter("one"), name)

    def test_shares_of_steps_that_cannot_be_end_in_one_line(self):
        teacher = self.other_model()
        texts = self.folder / "texts.jsonl"
        texts.write_text(json.dumps({"input_ids": [1, 5, 9, 2], "labels": [1, 5, 9, 2]}) + "\n")
        long = self.folder / "long.jsonl"
        long.write_text(json.dumps({"input_ids": [5] * 30, "labels": [-100] * 28 + [5] * 2}) + "\n")
        rollout, tokens = {"max_new_tokens": 12}, {"format": "tokens", "max_length": 32}
        for objective, sections, code, words in (
                ({"lmbda": 0.5}, {"rollout": None}, 2, "objective.lmbda: is for answers that are drawn"),
                ({"seq_kd": True}, {}, 2, "objective.seq_kd: the teacher answers in no step"),
                ({"lmbda": 1.5}, {}, 2, "objective.lmbda"),
                ({"lmbda": 0.5}, {"rollout": {**rollout, "completions": 2}}, 2, "one answer to a prompt"),
                ({"lmbda": 0.5}, {"rollout": {**rollout, "file": "given.jsonl"}}, 2, "contradicts rollout.file"),
                ({"lmbda": 0.5}, {"data": {"train": str(texts), **tokens}}, 3, "texts.jsonl:1:1: has no prompt"),
                ({"lmbda": 0.5}, {"data": {"train": str(long), **tokens}}, 3, "long.jsonl:1:1: has a prompt of 28 tokens")):
            done = run("train", self.mixed_recipe("bad", teacher, objective, **sections))
            self.assertEqual(done.code, code, done.err)
            self.assertIn(words, done.err.splitlines()[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
