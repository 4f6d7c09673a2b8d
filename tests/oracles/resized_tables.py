"""Holds `nibble logits --adapter` and `nibble merge` against PEFT on adapters of models whose vocabulary was resized, or
whose embedding layers are saved (save_embedding_layers), with tied and untied heads, with and without a bias.

    NIBBLE=build/release/bin/nibble python tests/oracles/resized_tables.py

Rows that the file does not have are the mean, without the noise that Transformers adds. PEFT 0.21 leaves out the bias of
a head with rows of tokens until it is merged; it is added here.
"""
import os, subprocess, sys, tempfile, warnings
from pathlib import Path
import numpy as np, torch, transformers
from peft import LoraConfig, PeftModel, get_peft_model

NIBBLE, ROWS = os.environ["NIBBLE"], 97
SIZES = dict(vocab_size=ROWS, hidden_size=36, intermediate_size=50, num_hidden_layers=2, num_attention_heads=3,
             num_key_value_heads=3, max_position_embeddings=64, initializer_range=0.3)
OPTIONS = [dict(), dict(target_modules=["X", "E"]), dict(target_modules=["X", "lm_head"]),
           dict(target_modules=["X", "E", "lm_head"]), dict(modules_to_save=["E", "lm_head"]), dict(modules_to_save=["E"]),
           dict(modules_to_save=["lm_head"]), dict(modules_to_save=["lm_head"], bias="all"),
           dict(trainable_token_indices=[99, 98, 97]), dict(trainable_token_indices=[5, 98, 99, 97]),
           dict(trainable_token_indices={"lm_head": [5, 9]})]
NAMES = {"llama": ("q_proj", "embed_tokens"), "phi": ("q_proj", "embed_tokens"), "gpt2": ("c_attn", "wte")}


def without_noise(self, old, new, old_rows, added):
    new.weight.data[-added:] = old.weight.data.mean(0, dtype=torch.float32).to(new.weight.dtype)


def base(directory, family, tied, seed):
    torch.manual_seed(seed)
    config = (transformers.GPT2Config(vocab_size=ROWS, n_embd=36, n_layer=2, n_head=3, n_positions=64, initializer_range=0.3)
              if family == "gpt2" else transformers.CONFIG_MAPPING[family](**SIZES, tie_word_embeddings=tied))
    model = transformers.AutoModelForCausalLM.from_config(config)
    if model.get_output_embeddings().bias is not None:
        model.get_output_embeddings().bias.data.normal_()
    model.save_pretrained(directory)


def opened(directory, added):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    if added:
        model.resize_token_embeddings(ROWS + added)
    return model


def relative(got, wanted):
    return float(abs(got - wanted).max() / abs(wanted).max()) if got.shape == wanted.shape else float("inf")


def case(work, family, tied, options, added, seed):
    base(work / "base", family, tied, seed)
    names = dict(zip("XE", NAMES[family]))
    options = {key: [names.get(one, one) for one in value] if isinstance(value, list) else value for key, value in options.items()}
    options = {"target_modules": [names["X"]], **options}
    if not added and isinstance(options.get("trainable_token_indices"), list):
        options["trainable_token_indices"] = [5, 9]
    config = LoraConfig(r=4, task_type="CAUSAL_LM", fan_in_fan_out=family == "gpt2", **options)
    model = get_peft_model(opened(work / "base", added), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.3)
    model.save_pretrained(work / "adapter", **({} if added else {"save_embedding_layers": True}))
    ids = torch.randint(0, ROWS + added, (1, 11))
    np.save(work / "ids.npy", ids.numpy())
    peft = PeftModel.from_pretrained(opened(work / "base", added), work / "adapter").eval()
    with torch.no_grad():
        wanted = peft(ids).logits.numpy()
    head = peft.get_base_model().get_output_embeddings()
    if hasattr(head, "token_adapter") and head.token_adapter.base_layer.bias is not None:
        wanted += head.token_adapter.base_layer.bias.detach().numpy()
    subprocess.run([NIBBLE, "logits", "--model", work / "base", "--adapter", work / "adapter", "--ids", work / "ids.npy",
                    "--compute-dtype", "f32", "--out", work / "beside.npy"], check=True, capture_output=True)
    subprocess.run([NIBBLE, "merge", "--model", work / "base", "--adapter", work / "adapter", "--dtype", "f32", "--out",
                    work / "merged"], check=True, capture_output=True)
    merged, info = transformers.AutoModelForCausalLM.from_pretrained(work / "merged", output_loading_info=True)
    with torch.no_grad():
        got = merged(ids).logits.numpy()
    if any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        raise ValueError(f"Transformers finds {info}")
    return max(relative(np.load(work / "beside.npy"), wanted), relative(got, wanted))


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.PreTrainedModel._init_added_embeddings_weights_with_mean = without_noise
    worst, count, bad = 0, 0, 0
    for family, tied in (("llama", True), ("llama", False), ("phi", True), ("phi", False), ("gpt2", True)):
        for options in OPTIONS:
            for added in (3, 0):
                count += 1
                with tempfile.TemporaryDirectory() as work:
                    try:
                        difference = case(Path(work), family, tied, options, added, count)
                    except subprocess.CalledProcessError as error:
                        difference = float("inf")
                        print(error.stderr.decode().strip())
                worst = max(worst, difference)
                if difference > 1e-4:
                    bad += 1
                    print(family, tied, options, added, difference)
    print(f"{count} adapters, {bad} differ; largest difference {worst:.1e} of the largest logit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
