"""Rewards, returns, advantages and losses of PPO as TRL 1.12 computes them, padded, for random answers.

    python tests/oracles/ppo.py tests/data/ppo

Masks and whitening are TRL's functions; the lines between them are those of PPOTrainer.train, which has no function for them.
float64. Needs trl==1.12.0.
"""
import json
import pathlib
import sys

import torch
from trl.experimental.ppo.ppo_trainer import INVALID_LOGPROB, masked_mean, masked_whiten

CASES = {
    "plain": {},
    "gamma_k3": {"gamma": 0.95, "lam": 0.9, "kl_estimator": "k3", "kl_coef": 0.2, "vf_coef": 0.5},
    "whiten_rewards": {"whiten_rewards": True, "missing_eos_penalty": 1.5, "cliprange": 0.1, "cliprange_value": 0.05},
}
DEFAULTS = {"gamma": 1.0, "lam": 0.95, "kl_coef": 0.05, "kl_estimator": "k1", "whiten_rewards": False, "missing_eos_penalty": None,
            "cliprange": 0.2, "cliprange_value": 0.2, "vf_coef": 0.1}


def draw(seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([3, 6, 1, 6, 4])
    ended = torch.tensor([True, False, True, True, True])
    rows, width = len(lengths), int(lengths.max())
    random = lambda scale, *shape: scale * torch.randn(*shape, generator=g, dtype=torch.float64)
    old = -2 + random(0.5, rows, width)
    return dict(lengths=lengths, ended=ended, old=old, ref=old + random(0.2, rows, width), new=old + random(0.15, rows, width),
                values=random(0.5, rows, width + 1), vpred=random(0.5, rows, width + 1), scores=random(1.0, rows))


def compute(case, made):
    args = type("Args", (), {**DEFAULTS, **case})
    lengths, width = made["lengths"], int(made["lengths"].max())
    sequence_lengths = lengths - 1
    idxs = torch.arange(width).repeat(len(lengths), 1)
    mask, mask_p1 = idxs > sequence_lengths.unsqueeze(1), idxs > (sequence_lengths + 1).unsqueeze(1)
    old, ref, new = (made[k].masked_fill(mask, INVALID_LOGPROB) for k in ("old", "ref", "new"))
    values = made["values"][:, :width].masked_fill(mask_p1, 0)
    scores = made["scores"].clone()
    if args.missing_eos_penalty is not None:
        scores[~made["ended"]] -= args.missing_eos_penalty
    logr = ref - old
    kl = -logr if args.kl_estimator == "k1" else (logr.exp() - 1) - logr
    rewards = -args.kl_coef * kl
    at = torch.where(sequence_lengths + 1 < width, sequence_lengths + 1, sequence_lengths)
    rewards[torch.arange(len(lengths)), at] += scores
    if args.whiten_rewards:
        rewards = masked_whiten(rewards, mask=~mask_p1, shift_mean=False).masked_fill(mask_p1, 0)
    last, reversed_advantages = 0, []
    for t in reversed(range(width)):
        delta = rewards[:, t] + args.gamma * (values[:, t + 1] if t < width - 1 else 0.0) - values[:, t]
        last = delta + args.gamma * args.lam * last
        reversed_advantages.append(last)
    advantages = torch.stack(reversed_advantages[::-1], axis=1)
    returns = advantages + values
    advantages = masked_whiten(advantages, ~mask).masked_fill(mask, 0)

    new.requires_grad_()
    vpred = made["vpred"][:, :width].masked_fill(mask_p1, 0).requires_grad_()
    clipped = torch.clamp(vpred, values - args.cliprange_value, values + args.cliprange_value)
    vf1, vf2 = (vpred - returns) ** 2, (clipped - returns) ** 2
    vf_loss = 0.5 * masked_mean(torch.max(vf1, vf2), ~mask_p1)
    ratio = torch.exp(new - old)
    pg1, pg2 = -advantages * ratio, -advantages * torch.clamp(ratio, 1.0 - args.cliprange, 1.0 + args.cliprange)
    pg_loss = masked_mean(torch.max(pg1, pg2), ~mask)
    (pg_loss + args.vf_coef * vf_loss).backward()
    cut = lambda x, more: [row[:min(int(n) + more, width)].tolist() for row, n in zip(x, lengths)]
    return {
        "options": {**DEFAULTS, **case},
        "rewards": cut(rewards, 1), "returns": cut(returns, 1), "advantages": cut(advantages, 0),
        "policy_loss": pg_loss.item(), "value_loss": vf_loss.item(),
        "policy_gradient": cut(new.grad, 0), "value_gradient": cut(vpred.grad, 1),
        "metrics": {
            "objective/kl": kl.sum(1).mean().item(), "objective/entropy": ((-old) * ~mask).sum(1).mean().item(),
            "objective/non_score_reward": (-args.kl_coef * kl).sum(1).mean().item(), "objective/scores": scores.mean().item(),
            "objective/rlhf_reward": ((-args.kl_coef * kl).sum(1).mean() + scores.mean()).item()},
        "policy/clipfrac_avg": masked_mean((pg2 > pg1).double(), ~mask).item(),
        "val/clipfrac_avg": masked_mean((vf2 > vf1).double(), ~mask_p1).item(),
    }


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    made = draw(7)
    answers = [{"old": made["old"][i, :n].tolist(), "reference": made["ref"][i, :n].tolist(), "new": made["new"][i, :n].tolist(),
                "values": made["values"][i, :n + 1].tolist(), "new_values": made["vpred"][i, :n + 1].tolist(),
                "score": made["scores"][i].item(), "ended": bool(made["ended"][i])} for i, n in enumerate(made["lengths"].tolist())]
    expected = {name: compute(case, made) for name, case in CASES.items()}
    (out / "answers.json").write_text(json.dumps({"answers": answers, "cases": expected}, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
