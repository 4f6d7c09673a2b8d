"""A small gpt-oss in MXFP4 as it is published, exported with its experts in MXFP4 and run by llama.cpp.

    NIBBLE=build/release/bin/nibble python tests/oracles/gguf_mxfp4.py [--seed S]

The values of the exported experts, as the gguf package decodes them, are those of the checkpoint, bit for bit. llama.cpp rounds what
meets MXFP4 to eight bits (Q8_0); so do the experts of Transformers here, and the logits are compared: within 1e-3, but for what a last
bit of f32 rounds to another neighbour.
"""
import argparse, sys, tempfile
from pathlib import Path
import gguf, numpy as np, torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from families import randomize
from gguf_families import BASE, YARN, logits_of
from gguf_llama_cpp import Model, ffi, lib, nibble, quiet

FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def write(folder, seed):
    """The model's directory, and by tensor the values [E, out, in] of its experts."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model("gpt_oss", **BASE | dict(hidden_size=64, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=8,
                                                          rope_parameters=YARN | dict(truncate=True)))
    model = AutoModelForCausalLM.from_config(config).float()
    randomize(model, seed)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors, values = load_file(file), {}
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, out = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, out, rows // 32, 16), dtype=torch.uint8)
        scales = torch.randint(123, 126, (experts, out, rows // 32), dtype=torch.uint8)
        tensors |= {name + "_blocks": blocks, name + "_scales": scales}
        both = np.stack([FP4[blocks.numpy() & 15], FP4[blocks.numpy() >> 4]], -1).reshape(experts, out, rows // 32, 32)
        values[name] = (both * np.exp2(scales.numpy().astype(np.float32) - 127)[..., None]).reshape(experts, out, rows)
    save_file(tensors, file, metadata=dict(format="pt"))
    return values


def rounded(x):
    """To Q8_0 and back, as ggml does it: blocks of 32, their scale in f16."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    return (torch.round(blocks * torch.where(scale == 0, 0, 1 / scale)) * scale.half().float()).reshape(x.shape)


class Experts(torch.nn.Module):
    """gpt-oss's, of weights that lie as they are stored."""

    def __init__(self, old, gate_up, down, rounds):
        super().__init__()
        self.old, self.gate_up, self.down, self.round = old, gate_up, down, rounded if rounds else lambda x: x

    def forward(self, hidden_states, router_indices=None, routing_weights=None, **_):
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        y = torch.zeros_like(x)
        for t in range(x.shape[0]):
            for slot, e in enumerate(router_indices.reshape(x.shape[0], -1)[t].tolist()):
                both = self.gate_up[e] @ self.round(x[t]) + self.old.gate_up_proj_bias[e]
                gate, up = both[::2].clamp(max=7), both[1::2].clamp(-7, 7)
                out = self.down[e] @ self.round((up + 1) * gate * torch.sigmoid(1.702 * gate)) + self.old.down_proj_bias[e]
                weights = routing_weights[t]
                y[t] += out * (weights[slot] if weights.shape[0] == router_indices.shape[-1] else weights[e])
        return y.reshape(hidden_states.shape)


def with_tensors_of(out, of, other):
    """The file `of` with the MXFP4 tensors of `other`: else llama.cpp would round in bf16 too."""
    reader, instead = gguf.GGUFReader(of), {t.name: t for t in gguf.GGUFReader(other).tensors if t.tensor_type == gguf.GGMLQuantizationType.MXFP4}
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        tensor = instead.get(tensor.name, tensor)
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    lib.llama_log_set(quiet, ffi.NULL)
    lib.llama_backend_init()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        values = write(work / "model", seed)
        ids = np.random.default_rng(seed).integers(3, 96, 24).tolist()
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(work / "model"), attn_implementation="eager").float().eval()
        left = model.load_state_dict(load_file(work / "model/model.safetensors"), strict=False).missing_keys
        assert {n for n in left if not n.endswith("inv_freq")} == set(values), left
        old = [layer.mlp.experts for layer in model.model.layers]
        differences = []
        for kind in ("f32", "bf16"):  # of all but the experts, which bf16 leaves in MXFP4
            nibble("export", "--model", work / "model", "--no-tokenizer", "--format", "gguf", "--type", kind, "--out", work / f"{kind}.gguf")
        assert Model(work / "bf16.gguf").logits(ids).shape == (24, 96)
        with_tensors_of(work / "mxfp4.gguf", work / "f32.gguf", work / "bf16.gguf")
        for kind in ("f32", "mxfp4"):
            for l, layer in enumerate(model.model.layers):
                name = f"model.layers.{l}.mlp.experts."
                layer.mlp.experts = Experts(old[l], *(torch.tensor(values[name + n]) for n in ("gate_up_proj", "down_proj")), kind == "mxfp4")
            differences.append(float(abs(Model(work / f"{kind}.gguf").logits(ids) - logits_of(model, ids)).max()))
        stored = {t.name: t for t in gguf.GGUFReader(work / "bf16.gguf").tensors}
        same = True
        for name, value in values.items():
            layer = name.split(".")[2]
            parts = dict(ffn_gate_exps=value[:, ::2], ffn_up_exps=value[:, 1::2]) if "gate_up" in name else dict(ffn_down_exps=value)
            for part, want in parts.items():
                tensor = stored[f"blk.{layer}.{part}.weight"]
                same &= tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4 and np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), want)
        held = same and max(differences) < 1e-3
        print(f"{'ok   ' if held else 'FAIL '} values {'same' if same else 'differ'}, largest difference of a logit: experts in f32 {differences[0]:.1e}, in MXFP4 {differences[1]:.1e}")
        return not held


if __name__ == "__main__":
    sys.exit(main())
