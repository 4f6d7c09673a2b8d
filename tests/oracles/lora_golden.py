"""LoRA and QLoRA of the stories model in float64, by Transformers and PEFT: tests/data/lora-golden.

    python lora_golden.py DATA      reads DATA/stories-llama and DATA/stories-llama-nf4-dq, writes DATA/lora-golden

r 4, alpha 8, targets q_proj and v_proj, dropout 0, B not zero. input_ids.npy, labels.npy: three texts of other words than the
model's own, -100 where nothing is trained, shifted inside the loss, which is the mean over the scored tokens. For either base RUN
(lora_fp32; qlora_nf4_dq: every *_proj weight as bitsandbytes quantized it): RUN.grads.npz, the gradient of A and B of every module;
RUN.logits0.npy, the logits of the first text; RUN.adapter-after20, the adapter after 20 AdamW steps. report.json has the losses.
"""
import json, os, shutil, sys
from pathlib import Path

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np
import sentencepiece, torch, transformers
from bitsandbytes import functional
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
STEPS = 20
TEXTS = ["Once upon a time, there was a brave fox named Nils. Nils liked to climb on the roof of the mill.",
         "The little boat sailed across the wide green bay and the wind was cold that morning.",
         "Ada and Finn found a wooden chest. They opened it and saw a golden key inside!"]


def dequantized(folder):
    """The model of a bitsandbytes directory with its 4-bit weights expanded."""
    stored = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
    weights = {name: functional.dequantize_4bit(p.data, p.quant_state) if hasattr(p, "quant_state") else p.data
               for name, p in stored.named_parameters()}
    config = stored.config
    del config.quantization_config
    model = transformers.LlamaForCausalLM(config)
    missing = model.load_state_dict({name: w.float() for name, w in weights.items()}, strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys, missing
    return model


def texts(data):
    pieces = sentencepiece.SentencePieceProcessor(str(data / "stories-llama/tokenizer.model"))
    rows = [[1, *pieces.encode(text), 2] for text in TEXTS]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    labels = torch.tensor([[-100, *row[1:]] + [-100] * (length - len(row)) for row in rows])
    return ids, labels


def main(data):
    out = data / "lora-golden"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    ids, labels = texts(data)
    np.save(out / "input_ids.npy", ids.numpy())
    np.save(out / "labels.npy", labels.numpy())
    report = dict(texts=TEXTS, r=4, alpha=8, targets=["q_proj", "v_proj"], tokens_scored=int((labels[:, 1:] != -100).sum()))
    bases = {"lora_fp32": lambda: AutoModelForCausalLM.from_pretrained(data / "stories-llama", dtype=torch.float32),
             "qlora_nf4_dq": lambda: dequantized(data / "stories-llama-nf4-dq")}
    for run, load in bases.items():
        base = load().double()
        loss_of = lambda model: torch.nn.functional.cross_entropy(
            model(input_ids=ids).logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        report[run] = dict(loss_without_adapter=loss_of(base).item())
        model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        model.peft_config["default"].base_model_name_or_path = "stories-llama"
        model.double()
        draws = torch.Generator().manual_seed(7)  # what a file in float32 can hold
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.data = (torch.randn(p.shape, generator=draws) * (0.02 if "lora_B" in name else 0.1)).double()

        def save(folder):
            model.save_pretrained(folder, state_dict={name: p.float() for name, p in model.state_dict().items()})
            (folder / "README.md").unlink(missing_ok=True)

        if run == "lora_fp32":
            save(out / "adapter-init")
        np.save(out / f"{run}.logits0.npy", model(input_ids=ids[:1]).logits[0].detach().float().numpy())
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(trained.values(), lr=5e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
        losses = []
        for step in range(STEPS + 1):
            loss = loss_of(model)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                short = lambda name: "L" + name.split(".layers.")[1].removesuffix(".default.weight")
                np.savez(out / f"{run}.grads.npz", **{short(name): p.grad.numpy() for name, p in trained.items()})
                norm = torch.cat([p.grad.flatten() for p in trained.values()]).norm().item()
            if step < STEPS:
                optimizer.step()
        save(out / f"{run}.adapter-after20")
        report[run].update(loss_with_init_adapter=losses[0], grad_norm=norm, losses=losses)
        print(run, report[run]["loss_without_adapter"], losses[0], losses[-1])
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
