"""Random recipes of preferences, reward models, rollouts and distillation beside TRL's trainers: loss, metrics and every gradient
of a first step, as one microbatch and as several.

    python tests/oracles/trl_random.py build/release/bin/nibble [CASES [SEED]]

Adapters on small random models, float32. Needs trl==1.16.0. One line for each recipe; exit 1 where one differs.
"""
import json
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ.update(CUDA_VISIBLE_DEVICES="", TRL_EXPERIMENTAL_SILENCE="1")

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

WORDS = 96  # 0 pads, 1 begins, 2 ends
BENT = ["sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "sft"]
STRAIGHT = BENT + ["nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down"]
SCORED = ("q_proj", "v_proj", "down_proj")


def config(kind):
    of = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[kind]
    return of(vocab_size=WORDS, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              head_dim=16, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.15,
              tie_word_embeddings=kind == "qwen3")


def make_models(folder):
    for seed, kind in enumerate(("llama", "qwen3")):
        for name, causal in (("base", True), ("teacher", True), ("score", False)):
            torch.manual_seed(seed + 10 * causal + len(name))
            if causal:
                model = transformers.AutoModelForCausalLM.from_config(config(kind))
                model.save_pretrained(folder / kind / name)
            else:
                model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / kind / "base", num_labels=1)
            if name == "teacher":
                continue
            adapter = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=list(SCORED), init_lora_weights=False,
                                                       task_type="CAUSAL_LM" if causal else "SEQ_CLS"))
            adapter.save_pretrained(folder / kind / f"{name}-adapter")


def tokenizer():
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="t3"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="t3")


class Maker:
    """Draws recipes; each of the methods returns a recipe and what TRL says of it."""

    def __init__(self, folder, seed):
        self.folder, self.random, self.tokenizer = folder, random.Random(seed), tokenizer()

    def number(self, low, high):
        return round(self.random.uniform(low, high), 4)

    def coin(self, share=0.5):
        return self.random.random() < share

    def ids(self, least, most):
        return [self.random.randrange(3, WORDS) for _ in range(self.random.randint(least, most))]

    def prompt(self, may_be_empty=True):
        return [] if may_be_empty and self.coin(0.2) else [1] + self.ids(1, 7)

    def policy(self, kind, score=False):
        base = self.folder / kind / "base"
        auto = transformers.AutoModelForSequenceClassification if score else transformers.AutoModelForCausalLM
        model = auto.from_pretrained(base, dtype=torch.float32, **({"num_labels": 1} if score else {}))
        return PeftModel.from_pretrained(model, self.folder / kind / ("score-adapter" if score else "base-adapter"), is_trainable=True)

    def trainer(self, of, settings, kind, rows, options, score=False, **more):
        count = len(rows)
        arguments = dict(output_dir=str(self.folder / "trl"), bf16=False, use_cpu=True, gradient_checkpointing=False, report_to=[],
                         per_device_train_batch_size=count)
        columns = {"prompt": "t4", "completion": "t5", "label": True} if of is KTOTrainer else {"prompt": "t4", "chosen": "t5", "rejected": "t6"}
        made = of(model=self.policy(kind, score), args=settings(**arguments, **options), processing_class=self.tokenizer,
                  train_dataset=Dataset.from_list([columns] * count), **more)
        if "ref" in getattr(made.model, "peft_config", {}):
            made.model.delete_adapter("ref")  # the reference is the base alone
        made.model.train()
        return made

    def finish(self, kind, lines, format, objective, model, loss, metrics, score=False, **sections):
        loss.backward()
        adapter = self.folder / kind / ("score-adapter" if score else "base-adapter")
        data = self.folder / "data.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        recipe = {"model": {"path": str(self.folder / kind / "base"), "compute_dtype": "f32"}, "objective": objective,
                  "adapter": {"type": "lora", "path": str(adapter), "r": 4, "lora_alpha": 8, "target_modules": list(SCORED)},
                  "data": {"train": str(data), "format": format, "shuffle": False, "pack": False, "max_length": 128},
                  "train": {"steps": 1, "max_grad_norm": 0}, "output": {"dir": str(self.folder / "run")}, **sections}
        gradients = {name.replace(".default.", ".").replace(".modules_to_save.", "."): parameter.grad
                     for name, parameter in model.named_parameters() if parameter.grad is not None}
        means = {name: sum(of) / len(of) for name, of in metrics.items() if isinstance(of, list) and of}
        return recipe, loss.item(), {name: value for name, value in means.items() if value == value and name != "num_tokens"}, gradients

    def pairs(self):
        count = self.random.choice([2, 3, 4, 6])
        return [{"prompt_ids": self.prompt(), "chosen_ids": self.ids(1, 10) + [2], "rejected_ids": self.ids(1, 10) + [2]} for _ in range(count)]

    def dpo(self, kind):
        bends = self.random.choice(["reverse_kl"] * 2 + ["forward_kl", "js_divergence", "alpha_divergence"])
        losses = self.random.sample(STRAIGHT if bends == "reverse_kl" else BENT, self.random.choice([1, 2, 3]))
        options = {"loss_type": losses, "loss_weights": [self.number(0.05, 1.5) for _ in losses], "beta": self.number(0.05, 1),
                   "label_smoothing": self.number(0.01, 0.4), "f_divergence_type": bends}
        if bends == "alpha_divergence":
            options["f_alpha_divergence_coef"] = self.number(0.3, 1.4)  # farther from 1 TRL's float32 is not as exact
        if self.coin():
            options["ld_alpha"] = self.number(0, 1)
        if not {"aot", "aot_unpaired", "sft", "hinge"} & set(losses):  # TRL refuses or fails
            options["use_weighting"] = self.coin()
        rows = self.pairs()
        of = self.trainer(DPOTrainer, DPOConfig, kind, rows, options)
        loss = of.compute_loss(of.model, of.data_collator(rows))
        return self.finish(kind, rows, "preference", {"type": "dpo", **options}, of.model, loss, of._metrics["train"])

    def kto(self, kind):
        options = {"loss_type": self.random.choice(["kto", "kto", "apo_zero_unpaired"]), "beta": self.number(0.05, 1),
                   "desirable_weight": self.number(0, 2), "undesirable_weight": self.number(0, 2)}
        rows = [{"prompt_ids": self.prompt(), "completion_ids": self.ids(1, 10) + [2], "label": self.coin()}
                for _ in range(self.random.choice([2, 3, 4, 6]))]
        of = self.trainer(KTOTrainer, KTOConfig, kind, rows, options)
        others = [{**row, "KL_completion_ids": rows[i - 1]["completion_ids"]} for i, row in enumerate(rows)]
        loss = of.compute_loss(of.model, of.data_collator(others if options["loss_type"] == "kto" else rows))
        return self.finish(kind, rows, "unpaired", {"type": "kto", **options}, of.model, loss, of._metrics["train"])

    def cpo(self, kind):
        type = self.random.choice(["cpo", "cpo", "simpo", "orpo"])
        options = {"beta": self.number(0.05, 2)}
        if type != "orpo":
            options |= {"cpo_alpha": self.number(0, 2), "label_smoothing": self.number(0, 0.4), "simpo_gamma": self.number(0, 2),
                        "loss_type": "simpo" if type == "simpo" else self.random.choice(["sigmoid", "hinge", "ipo", "simpo"])}
        rows = self.pairs()
        of = self.trainer(*((ORPOTrainer, ORPOConfig) if type == "orpo" else (CPOTrainer, CPOConfig)), kind, rows, options)
        batch = {}
        for which in ("chosen", "rejected"):
            texts = [row["prompt_ids"] + row[which + "_ids"] for row in rows]
            longest = max(map(len, texts))
            filled = lambda lists, value: torch.tensor([of + [value] * (longest - len(of)) for of in lists])
            batch[which + "_input_ids"] = filled(texts, 0)
            batch[which + "_attention_mask"] = filled([[1] * len(text) for text in texts], 0)
            batch[which + "_labels"] = filled([[-100] * len(row["prompt_ids"]) + row[which + "_ids"] for row in rows], -100)
        loss, said = of.get_batch_loss_metrics(of.model, batch)
        # TRL's mean logits are over padding too.
        metrics = {name: [float(value)] for name, value in said.items() if not name.startswith("logits")}
        return self.finish(kind, rows, "preference", {"type": type, **options}, of.model, loss, metrics)

    def reward(self, kind):
        options = {"center_rewards_coefficient": self.number(0.001, 0.5)} if self.coin() else {}
        rows = self.pairs()
        if self.coin():
            rows = [{**row, "margin": self.number(-1, 2)} for row in rows]
        of = self.trainer(RewardTrainer, RewardConfig, kind, rows, options, score=True)
        texts = [{**row, **{f"{which}_ids": row["prompt_ids"] + row[f"{which}_ids"] for which in ("chosen", "rejected")}} for row in rows]
        loss = of.compute_loss(of.model, of.data_collator(texts))
        return self.finish(kind, rows, "preference", {"type": "reward", **options}, of.model, loss, of._metrics["train"], score=True)

    def rollouts(self, kind):
        group, size = self.random.choice([1, 2, 3]), self.random.choice([2, 3, 4])
        lines = []
        for _ in range(group):
            prompt = self.prompt(may_be_empty=False)
            for _ in range(size):
                cut = self.coin(0.2)
                lines.append({"prompt_ids": prompt, "completion_ids": self.ids(1, 8) + ([] if cut else [2]), "truncated": cut,
                              "reward": None if self.coin(0.1) else self.number(-2, 2)})
        grpo, temperature = self.coin(0.75), self.random.choice([1.0, self.number(0.5, 2)])
        options = {"epsilon": self.number(0.01, 0.3), "beta": self.random.choice([0.0, self.number(0.01, 0.5)]),
                   "epsilon_high": self.number(0.01, 0.5), "mask_truncated_completions": self.coin(0.3)}
        if grpo:
            options |= {"loss_type": self.random.choice(["grpo", "bnpo", "dr_grpo", "dapo", "cispo"]), "use_bias_correction_kl": self.coin(),
                        "scale_rewards": self.random.choice(["group", "batch", "none"]),
                        "importance_sampling_level": self.random.choice(["token", "sequence"]),
                        "delta": self.random.choice([None, self.number(0.9, 2)])}
            if options["loss_type"] == "cispo":
                options["epsilon_high"] = self.number(0.8, 1.5)
        else:
            options |= {"normalize_advantages": self.coin(), "reward_clip_range": self.random.choice([None, (-1.0, 0.5)])}
        if options["mask_truncated_completions"] and all(line["truncated"] for line in lines):
            lines[0] |= {"truncated": False, "completion_ids": lines[0]["completion_ids"] + [2]}  # a step without any loss is left out
        of = self.trainer(*((GRPOTrainer, GRPOConfig) if grpo else (RLOOTrainer, RLOOConfig)), kind, lines,
                          {**options, "num_generations": size, "max_completion_length": 10, "temperature": temperature},
                          reward_funcs=lambda prompts, **_: [line["reward"] for line in lines])
        of.current_gradient_accumulation_steps = 1
        of._tokenize_prompts = lambda prompts: ([line["prompt_ids"] for line in lines], None, {})
        answers = [line["completion_ids"] for line in lines]
        of._generate_single_turn = lambda *a, **k: (answers, None) if grpo else answers
        batch = of._generate_and_score_completions([{"prompt": "t4"} for _ in lines])
        if grpo and self.coin():  # written by another policy
            noise = torch.Generator().manual_seed(self.random.randrange(1000))
            with torch.no_grad():
                texts, masks = (torch.cat([batch["prompt_" + of], batch["completion_" + of]], 1) for of in ("ids", "mask"))
                said = of._get_per_token_logps_and_entropies(of.model, texts, masks, batch["completion_ids"].size(1))[0]
            batch["old_per_token_logps"] = old = (said + 0.3 * torch.randn(said.shape, generator=noise)).clamp(max=-1e-4)
            for line, row in zip(lines, old.tolist()):
                line["old_logprobs"] = row[:len(line["completion_ids"])]
        loss = of._compute_loss(of.model, batch)
        metrics = {name: value for name, value in of._metrics["train"].items() if not name.startswith("rewards/")}
        given = self.folder / "rollouts.jsonl"
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))
        objective = {"type": "grpo" if grpo else "rloo", **{name: value for name, value in options.items() if value is not None}}
        return self.finish(kind, lines, "prompts", objective, of.model, loss, metrics, rollout={
            "completions": size, "max_new_tokens": 10, "temperature": temperature, "file": str(given)})

    def distillation(self, kind):
        beta, temperature, rows = self.random.choice([0.0, 1.0, self.number(0, 1)]), self.number(0.4, 3), []
        for _ in range(self.random.choice([2, 4])):
            prompt, answer = self.prompt(may_be_empty=False), self.ids(1, 8) + [2]
            rows.append({"input_ids": prompt + answer, "labels": [-100] * len(prompt) + [x if self.coin(0.8) else -100 for x in answer[:-1]] + [2]})
        model = self.policy(kind)
        teacher = self.folder / kind / "teacher"
        longest = max(len(row["input_ids"]) for row in rows)
        ids, labels = (torch.tensor([row[of] + [filling] * (longest - len(row[of])) for row in rows])
                       for of, filling in (("input_ids", 0), ("labels", -100)))
        mask = torch.tensor([[int(i < len(row["input_ids"])) for i in range(longest)] for row in rows])
        with torch.no_grad():
            wanted = transformers.AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)(ids, attention_mask=mask).logits
        logits = model(ids, attention_mask=mask).logits
        loss = GKDTrainer.generalized_jsd_loss(logits[:, :-1], wanted[:, :-1], labels=labels[:, 1:], beta=beta, temperature=temperature)
        return self.finish(kind, rows, "tokens", {"type": "distillation", "beta": beta, "temperature": temperature,
                                                  "teacher_model_name_or_path": str(teacher)}, model, loss, {})


def differences(program, folder, recipe, loss, metrics, gradients, microbatch, accumulate):
    recipe["train"] |= {"microbatch_size": microbatch, "accumulate": accumulate}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    out = folder / "gradients.safetensors"
    done = subprocess.run([program, "gradients", "--recipe", folder / "recipe.json", "--out", out], capture_output=True, text=True)
    if done.returncode != 0:
        return [done.stderr.strip().splitlines()[-1]]
    said = json.loads(done.stdout)
    found = [] if abs(said["loss"] - loss) <= 1e-5 * max(1, abs(loss)) else [f"loss {said['loss']} instead of {loss}"]
    for name, value in metrics.items():
        if not abs(said["metrics"].get(name, float("nan")) - value) <= 1e-4 * max(1, abs(value)):
            found.append(f"{name} {said['metrics'].get(name)} instead of {value}")
    ours = load_file(out)
    whole = sum(g.norm() ** 2 for g in gradients.values()) ** 0.5
    for name, gradient in gradients.items():
        if not (ours[name] - gradient).norm() <= 1e-3 * gradient.norm() + 1e-6 * whole + 1e-30:
            found.append(f"gradient of {name}")
    return found


def main():
    program, cases, seed = sys.argv[1], *map(int, [*sys.argv[2:], 60, 0][:2] if len(sys.argv) < 4 else sys.argv[2:4])
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_models(folder)
        maker = Maker(folder, seed)
        for case in range(cases):
            make = maker.random.choice([maker.dpo, maker.dpo, maker.kto, maker.cpo, maker.reward, maker.rollouts, maker.rollouts, maker.rollouts,
                                        maker.distillation])
            recipe, *wanted = make(maker.random.choice(["llama", "qwen3"]))
            if wanted[0] != wanted[0]:
                print(case, json.dumps(recipe["objective"]), "is beyond TRL's float32", flush=True)
                continue
            lines = len(pathlib.Path(recipe["data"]["train"]).read_text().splitlines())
            smallest = recipe.get("rollout", {}).get("completions", 1)
            found = [f"{size} x {lines // size}: {what}" for size in {lines, smallest}
                     for what in differences(program, folder, recipe, *wanted, size, lines // size)]
            wrong += bool(found)
            print(case, json.dumps(recipe["objective"]), *(found or ["as TRL"]), sep="\n  " if found else " ", flush=True)
    print(f"{cases - wrong} of {cases} recipes as TRL's")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
