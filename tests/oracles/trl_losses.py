"""Losses and their derivatives as TRL's trainers compute them, for random log-probabilities of answers.

    python tests/oracles/trl_losses.py > tests/data/trl/losses.json

The methods are those of DPOTrainer, KTOTrainer, CPOTrainer, ORPOTrainer, RewardTrainer, GRPOTrainer, RLOOTrainer and GKDTrainer; the
model is a stand-in that says what was drawn. float64, but for alpha_divergence, which TRL computes in float32 alone. Needs trl==1.16.0.
"""
import collections
import json
from types import SimpleNamespace

import torch
from trl import DPOTrainer, GRPOTrainer, KTOTrainer, RewardTrainer, RLOOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.orpo import ORPOTrainer

PROMPT = 3
LENGTHS = [4, 2, 1, 6, 3, 3]  # of answers: of pairs chosen, rejected, chosen, ...

PREFERENCES = [
    {"type": "dpo", "loss_type": name, **more}
    for name in ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero",
                 "apo_down", "discopop", "sigmoid_norm", "sft")
    for more in [{"beta": 0.3} | ({"label_smoothing": 0.1} if name in ("exo_pair", "robust", "aot", "aot_unpaired") else {})]
] + [
    {"type": "dpo", "beta": 0.2, "loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.5]},
    {"type": "dpo", "beta": 0.2, "loss_type": "sigmoid", "ld_alpha": 0.4},
    {"type": "dpo", "beta": 0.2, "loss_type": "sigmoid", "use_weighting": True},
    {"type": "dpo", "beta": 0.2, "loss_type": "ipo", "f_divergence_type": "forward_kl"},
    {"type": "dpo", "beta": 0.2, "loss_type": "sigmoid", "f_divergence_type": "js_divergence"},
    {"type": "dpo", "beta": 0.2, "loss_type": "sigmoid", "f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.5},
    {"type": "kto", "loss_type": "kto", "beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5},
    {"type": "kto", "loss_type": "apo_zero_unpaired", "beta": 0.3},
    {"type": "cpo", "loss_type": "sigmoid", "beta": 0.3, "label_smoothing": 0.1},
    {"type": "cpo", "loss_type": "hinge", "beta": 0.3, "cpo_alpha": 0.5},
    {"type": "cpo", "loss_type": "ipo", "beta": 0.3},
    {"type": "simpo", "beta": 0.5, "simpo_gamma": 0.4, "cpo_alpha": 0.0},
    {"type": "simpo", "beta": 0.5, "simpo_gamma": 0.4, "cpo_alpha": 0.7},
    {"type": "orpo", "beta": 0.3},
]
UNPROMPTED = [  # of answers whose first token nothing stands before: it has no log-probability
    {"type": "dpo", "loss_type": "sigmoid", "beta": 0.3},
    {"type": "dpo", "loss_type": "ipo", "beta": 0.3},
    {"type": "dpo", "loss_type": "sigmoid_norm", "beta": 0.3},
    {"type": "dpo", "loss_type": ["ipo", "sft"], "beta": 0.3, "ld_alpha": 0.4},
    {"type": "dpo", "loss_type": "ipo", "beta": 0.3, "use_weighting": True},
    {"type": "kto", "loss_type": "kto", "beta": 0.3},
]
ROLLOUTS = [
    {"type": "grpo", "loss_type": name, "beta": 0.04, "epsilon": 0.2, "epsilon_high": 0.28}
    for name in ("grpo", "bnpo", "dapo", "dr_grpo")
] + [
    {"type": "grpo", "loss_type": "cispo", "beta": 0.0, "epsilon_high": 1.1},
    {"type": "grpo", "loss_type": "dapo", "beta": 0.1, "delta": 1.2, "use_bias_correction_kl": False},
    {"type": "grpo", "loss_type": "grpo", "beta": 0.1, "importance_sampling_level": "sequence"},
    {"type": "rloo", "beta": 0.0, "epsilon": 0.1, "epsilon_high": 0.3},
]
REWARDS = [{"type": "reward"}, {"type": "reward", "center_rewards_coefficient": 0.1}]
DIVERGENCES = [{"type": "distillation", "beta": beta, "temperature": t} for beta, t in ((0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (0.3, 2.0))]


class Model(torch.nn.Module):
    """Says of rows what was drawn."""

    is_gradient_checkpointing = False

    def __init__(self, **what):
        super().__init__()
        self.what = what

    def forward(self, *args, **kwargs):
        return SimpleNamespace(**self.what)


def same(x):
    return x


def trainer(**options):
    accelerator = SimpleNamespace(device="cpu", gather=same, gather_for_metrics=same, num_processes=1, sync_gradients=True,
                                  reduce=lambda x, reduction: x)
    return SimpleNamespace(model=Model(), accelerator=accelerator, args=SimpleNamespace(**options), aux_loss_enabled=False, _tp_size=1,
                           _total_train_tokens=0, _metrics=collections.defaultdict(lambda: collections.defaultdict(list)), **options)


def draw(seed, low=-3.0, high=-0.05):
    """[answers, longest]: log-probabilities, 0 behind an answer's end."""
    g = torch.Generator().manual_seed(seed)
    numbers = low + (high - low) * torch.rand(len(LENGTHS), max(LENGTHS), generator=g, dtype=torch.float64)
    numbers = numbers.float().double()  # what a program in float32 can be given
    return numbers * answer_mask()


def answer_mask():
    return (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).double()


def in_order_of_pairs(rows):
    """Of chosen, then rejected answers: chosen, rejected, chosen, ..."""
    return torch.stack(rows.chunk(2, dim=0), dim=1).flatten(0, 1)


def chosen_first(rows):
    return torch.cat([rows[0::2], rows[1::2]])


def with_prompts(rows, prompt=PROMPT):
    """Log-probabilities by the token before: none for the first token, 0 for the others of the prompt."""
    return torch.cat([torch.zeros(len(rows), prompt, dtype=rows.dtype), rows], dim=1)[:, 1:]


def masks(order, prompt=PROMPT):
    answers = order(answer_mask())
    completion = torch.cat([torch.zeros(len(answers), prompt), answers], dim=1)
    return completion, torch.cat([torch.ones(len(answers), prompt), answers], dim=1)


def in_lists(rows):
    return [[x.item() for x in row[:n]] for row, n in zip(rows, LENGTHS)]


def preference(options, prompt=PROMPT):
    kind = options["type"]
    policy, reference, collisions = draw(1), draw(56), draw(3)  # whose order no sorting keeps
    if kind == "kto":
        return kto(options, policy, reference, prompt)
    if kind in ("cpo", "simpo", "orpo"):
        return without_reference(options, policy)
    dtype = torch.float32 if options.get("f_divergence_type") == "alpha_divergence" else torch.float64
    losses = options["loss_type"] if isinstance(options["loss_type"], list) else [options["loss_type"]]
    given = {"label_smoothing": 0.0, "ld_alpha": None, "use_weighting": False, "f_divergence_type": "reverse_kl",
             "f_alpha_divergence_coef": 0.5, "discopop_tau": 0.05} | {k: v for k, v in options.items() if k != "type"}
    given["loss_weights"] = given.get("loss_weights", [1.0] * len(losses))
    this = trainer(loss_types=losses, precompute_ref_logps=False, gradient_checkpointing_kwargs=None, **given)
    leaf = policy.to(dtype).requires_grad_()
    said = lambda rows: with_prompts(chosen_first(rows), prompt)
    nothing = torch.zeros_like(said(policy))
    this.ref_model = Model(log_probs=said(reference.to(dtype)))
    model = Model(log_probs=said(leaf), entropy=nothing, mean_logits=nothing, is_top1=nothing.bool(),
                  log_sum_sq_probs=said(collisions.to(dtype)))
    completion, attention = masks(chosen_first, prompt)
    loss = DPOTrainer._compute_loss(this, model, {"input_ids": attention.long(), "attention_mask": attention.long(),
                                                  "completion_mask": completion.long()}, False)
    loss.backward()
    return {"policy": in_lists(policy), "reference": in_lists(reference), "collisions": in_lists(collisions), "loss": loss.item(),
            "gradient": in_lists(leaf.grad)}


def kto(options, policy, reference, prompt):
    verdicts = [True, False, False, True, True, False]
    this = trainer(calculate_KL=options["loss_type"] == "kto", precompute_ref_logps=False, gradient_checkpointing_kwargs=None,
                   **({"desirable_weight": 1.0, "undesirable_weight": 1.0} | {k: v for k, v in options.items() if k != "type"}))
    leaf = policy.clone().requires_grad_()
    nothing = torch.zeros_like(with_prompts(policy, prompt))
    model = Model(log_probs=with_prompts(leaf, prompt), entropy=nothing, mean_logits=nothing)
    this.ref_model = Model(log_probs=with_prompts(reference, prompt))
    # The answers under other prompts: here the same ones, so that the batch is its own survey.
    this._compute_kl_logps = lambda of, batch: of.what["log_probs"].sum(-1)
    completion, attention = masks(same, prompt)
    loss = KTOTrainer._compute_loss(this, model, {"input_ids": attention.long(), "attention_mask": attention.long(),
                                                  "completion_mask": completion.long(), "label": torch.tensor(verdicts)}, False)
    loss.backward()
    return {"policy": in_lists(policy), "reference": in_lists(reference), "verdicts": verdicts, "loss": loss.item(),
            "gradient": in_lists(leaf.grad)}


def without_reference(options, policy):
    kind = options["type"]
    this = trainer(is_encoder_decoder=False, pad_token_id=0, padding_value=0, alpha=0.0,
                   **({"label_smoothing": 0.0, "cpo_alpha": 1.0, "simpo_gamma": 0.5, "loss_type": "simpo" if kind == "simpo" else "sigmoid"}
                      | {k: v for k, v in options.items() if k != "type"}))
    # orpo counts the prompt as well: its tokens have log-probabilities too.
    prompts = draw(4)[:, :1] if kind == "orpo" else torch.zeros(len(LENGTHS), 1, dtype=torch.float64)
    before = torch.cat([prompts, prompts * 0.5], dim=1) if kind == "orpo" else torch.zeros(len(LENGTHS), 2, dtype=torch.float64)
    before = before.float().double()
    leaf, leaf_before = policy.clone().requires_grad_(), before.clone().requires_grad_()
    of_labels = torch.cat([chosen_first(leaf_before), chosen_first(leaf), torch.zeros(len(LENGTHS), 1, dtype=torch.float64)], dim=1)
    of_labels = torch.where(of_labels == 0, -1.0, of_labels)  # no label
    # Of two ids, the second of which every label is: the softmax gives it the probability that was drawn.
    model = Model(logits=torch.stack([torch.log1p(-of_labels.exp()), of_labels], dim=-1))
    completion, attention = masks(chosen_first)
    ids = attention.long()
    labels = torch.where(completion == 1, ids, -100)
    half = len(ids) // 2
    this.concatenated_forward = lambda *a: (CPOTrainer if kind != "orpo" else ORPOTrainer).concatenated_forward(this, *a)
    of = CPOTrainer if kind != "orpo" else ORPOTrainer
    for name in ("cpo_loss", "odds_ratio_loss"):
        if hasattr(of, name):
            setattr(this, name, lambda *a, name=name: getattr(of, name)(this, *a))
    this.concatenated_inputs, this.get_batch_logps = of.concatenated_inputs, of.get_batch_logps
    loss, _ = of.get_batch_loss_metrics(this, model, {
        "chosen_input_ids": ids[:half], "chosen_attention_mask": ids[:half], "chosen_labels": labels[:half],
        "rejected_input_ids": ids[half:], "rejected_attention_mask": ids[half:], "rejected_labels": labels[half:]})
    loss.backward()
    result = {"policy": in_lists(policy), "loss": loss.item(), "gradient": in_lists(leaf.grad)}
    if kind == "orpo":
        result |= {"prompts": before.tolist(), "prompt_gradient": leaf_before.grad.tolist()}
    return result


def rollout(options):
    old, reference = draw(5), draw(6)
    g = torch.Generator().manual_seed(7)
    policy = ((old + 0.3 * torch.randn(old.shape, generator=g, dtype=torch.float64)) * answer_mask()).float().double()
    advantages = torch.tensor([0.75, -1.25, 0.5, -0.25, 1.5, -1.0], dtype=torch.float64)
    leaf = policy.clone().requires_grad_()
    given = {"delta": None, "use_bias_correction_kl": True, "epsilon": 0.2, "importance_sampling_level": "token"} | options
    this = trainer(epsilon_low=given["epsilon"], top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
                   max_completion_length=8, current_gradient_accumulation_steps=1, steps_per_generation=1, _entropy_bonus_enabled=False,
                   **({k: v for k, v in given.items() if k != "type"} | {"epsilon_high": given.get("epsilon_high", given["epsilon"])}))
    this._get_per_token_logps_and_entropies = lambda *a, **k: (leaf, torch.zeros_like(policy), None)
    mask = answer_mask()
    prompts = torch.ones(len(LENGTHS), PROMPT, dtype=torch.long)
    inputs = {"prompt_ids": prompts, "prompt_mask": prompts, "completion_ids": mask.long(), "completion_mask": mask,
              "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": reference, "old_logps": old.sum(1),
              "num_items_in_batch": mask.sum()}
    loss = (RLOOTrainer if options["type"] == "rloo" else GRPOTrainer)._compute_loss(this, None, inputs)
    loss.backward()
    return {"policy": in_lists(policy), "old": in_lists(old), "reference": in_lists(reference), "advantages": advantages.tolist(),
            "loss": loss.item(), "gradient": in_lists(leaf.grad)}


def reward(options):
    scores = draw(8)[:, :1] + 2
    margins = [0.5, 0.0, 1.0]
    leaf = scores.clone().requires_grad_()
    this = trainer(**({"center_rewards_coefficient": None} | {k: v for k, v in options.items() if k != "type"}))
    inputs = {"attention_mask": torch.ones(len(LENGTHS), 2), "margin": torch.tensor(margins)}
    loss = RewardTrainer.compute_loss(this, Model(logits=chosen_first(leaf)), inputs)
    loss.backward()
    return {"scores": scores.flatten().tolist(), "margins": margins, "loss": loss.item(), "gradient": leaf.grad.flatten().tolist()}


def divergence(options):
    g = torch.Generator().manual_seed(9)
    student, teacher = (2 * torch.randn(5, 7, generator=g, dtype=torch.float64) for _ in range(2))
    student, teacher = student.float().double(), teacher.float().double()
    leaf = student.clone().requires_grad_()
    loss = GKDTrainer.generalized_jsd_loss(leaf[None], teacher[None], labels=torch.tensor([[1, -100, 2, 3, 4]]), beta=options["beta"],
                                           temperature=options["temperature"])
    loss.backward()
    return {"student": student.tolist(), "teacher": teacher.tolist(), "labels": [1, -100, 2, 3, 4], "loss": loss.item(),
            "gradient": leaf.grad.tolist()}


def main():
    sections = {"preferences": (PREFERENCES, preference), "unprompted": (UNPROMPTED, lambda options: preference(options, prompt=0)),
                "rollouts": (ROLLOUTS, rollout), "rewards": (REWARDS, reward), "divergences": (DIVERGENCES, divergence)}
    print(json.dumps({"prompt": PROMPT, "lengths": LENGTHS,
                      **{name: [{"objective": options, **compute(options)} for options in cases]
                         for name, (cases, compute) in sections.items()}}))


main()
