"""Scores, losses and gradients of Transformers' sequence classification with PEFT's adapters, on a tiny random model.

    python tests/oracles/scores.py tests/data/scores

Writes a causal model, for each problem type a PEFT adapter with its score head, data, and expected.json: scores at the last
token and by Transformers' rule for padding, loss and gradients of one batch. float32, one thread.
"""
import json
import pathlib
import sys

import torch
import transformers
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

VOCABULARY, PAD = 48, 0


def tiny(labels=None, problem=None):
    torch.manual_seed(1)
    sizes = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                 num_key_value_heads=1, head_dim=16, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=1, eos_token_id=2,
                 initializer_range=0.3, tie_word_embeddings=False, dtype="float32")
    if labels is None:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(num_labels=labels, problem_type=problem, **sizes))


def texts(seed, count):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
    made = [[1] + torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() + [2] for n in lengths]
    made[1][-1] = made[2][-1] = made[2][-2] = PAD  # what only the rule for padding passes over
    return made


def at(model, ids, position):
    hidden = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state
    return model.score(hidden[0, position])


def case(name, labels, problem, label_of, base, out):
    model = tiny(labels, problem)
    model.model.load_state_dict(base.model.state_dict())
    config = LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    peft = get_peft_model(model, config)
    torch.manual_seed(len(name))
    with torch.no_grad():
        for parameter_name, parameter in peft.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    peft.save_pretrained(out / f"adapter-{name}")
    (out / f"adapter-{name}" / "README.md").unlink(missing_ok=True)
    rows = [{"input_ids": ids, "label": label_of(i)} for i, ids in enumerate(texts(5, 6))]
    (out / f"data-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = [at(peft.base_model.model, row["input_ids"], len(row["input_ids"]) - 1) for row in rows]
    padded = [peft(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows]
    logits = torch.stack(scores)
    wanted = torch.tensor([row["label"] for row in rows])
    loss = {"regression": lambda: torch.nn.functional.mse_loss(logits.squeeze(-1), wanted),
            "single_label_classification": lambda: torch.nn.functional.cross_entropy(logits, wanted),
            "multi_label_classification": lambda: torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted)}[problem]()
    loss.backward()
    gradients = {key: value.grad for key, value in peft.named_parameters() if value.grad is not None}
    saved = set(get_peft_model_state_dict(peft))
    named = {key.replace(".default", "").replace("modules_to_save.", ""): value.flatten().tolist() for key, value in gradients.items()}
    assert set(named) == saved, (set(named) ^ saved)
    return {"labels": labels, "scores": logits.tolist(), "last_non_pad": torch.stack(padded).tolist(), "loss": loss.item(), "gradients": named}


def main(out):
    torch.set_num_threads(1)
    base = tiny()
    base.save_pretrained(out / "model")
    (out / "model" / "generation_config.json").unlink(missing_ok=True)
    expected = {"classes": case("classes", 3, "single_label_classification", lambda i: i % 3, base, out),
                "several": case("several", 4, "multi_label_classification", lambda i: [float(i >> k & 1) for k in range(4)], base, out),
                "numbers": case("numbers", 1, "regression", lambda i: 0.5 * i - 1, base, out)}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
