"""What nibble writes of every family, loaded in Transformers: the merged model of each case of families.py (`nibble merge`, against
the logits that PEFT gave for base and adapter) and the 4-bit directory (`nibble quantize`, against nibble's own logits of it).

    NIBBLE=build/release/bin/nibble python compare_written.py DIR [--skip-quantize] [--type nf4|fp4] [--no-double-quant] [--theirs]

--theirs: instead, the 4-bit directory that Transformers writes with bitsandbytes, loaded in nibble.

A line for every case that does not hold, then the rows: family, cases, the largest difference of a logit merged and in 4 bits.
"""
import argparse, json, os, shutil, subprocess, tempfile
from pathlib import Path

import bitsandbytes
import numpy
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from families import attention_of

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def nibble(*arguments):
    done = subprocess.run([os.environ["NIBBLE"], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])


def unpacked(data, state):
    """The weights behind packed bytes, by the rule of the format; bitsandbytes' CPU kernels take another for widths that
    are a multiple of 16 and none of the block."""
    absmax = state.absmax
    if state.nested:
        scales = state.state2.absmax.repeat_interleave(state.state2.blocksize)[: absmax.numel()]
        absmax = state.state2.code[absmax.long()] * scales + state.offset
    codes = torch.stack([data.flatten() >> 4, data.flatten() & 15], 1).flatten()[: state.shape.numel()]
    values = state.code[codes.long()]
    return (values * absmax.repeat_interleave(state.blocksize)[: values.numel()]).view(state.shape)


def plain_product(module):
    """The product in float32."""
    weight = unpacked(module.weight.data.view(torch.uint8), module.weight.quant_state)
    return lambda x: torch.nn.functional.linear(x, weight, module.bias)


def transformers_logits(directory, ids, kind=AutoModelForCausalLM):
    config = AutoConfig.from_pretrained(directory)
    model, info = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention_of(config), output_loading_info=True)
    problems = {key: sorted(value)[:3] for key, value in info.items() if value and key != "error_msgs"}
    assert not problems, problems
    packed = 0
    if getattr(config, "quantization_config", None):
        for parameter in model.parameters():
            if parameter.is_floating_point():  # Transformers keeps the file's dtype
                parameter.data = parameter.data.float()
        for module in model.modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                packed += 1
                module.forward = plain_product(module)
        assert packed, "nothing is in 4 bits"
    with torch.no_grad():
        return model.eval()(torch.from_numpy(ids), use_cache=False).logits.float().numpy()


def merged(case, ids, scratch, _):
    nibble("merge", "--model", case / "model", "--adapter", case / "lora", "--out", scratch / "merged", "--dtype", "f32")
    return transformers_logits(scratch / "merged", ids), numpy.load(case / "lora_logits.npy")


def quantized(case, ids, scratch, flags):
    nibble("quantize", "--model", case / "model", "--out", scratch / "packed", *flags)
    nibble("logits", "--model", scratch / "packed", "--ids", case / "input_ids.npy", "--compute-dtype", "f32", "--out", scratch / "l.npy")
    return transformers_logits(scratch / "packed", ids), numpy.load(scratch / "l.npy")


def theirs(case, ids, scratch, flags):
    wanted = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=flags[1], bnb_4bit_compute_dtype=torch.float32,
                                             bnb_4bit_use_double_quant="--no-double-quant" not in flags)
    model = AutoModelForCausalLM.from_pretrained(case / "model", dtype=torch.float32, quantization_config=wanted, device_map="cpu")
    model.save_pretrained(scratch / "theirs")
    nibble("logits", "--model", scratch / "theirs", "--ids", case / "input_ids.npy", "--compute-dtype", "f32", "--out", scratch / "l.npy")
    return numpy.load(scratch / "l.npy"), transformers_logits(scratch / "theirs", ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=Path)
    parser.add_argument("--skip-quantize", action="store_true")
    parser.add_argument("--type", default="nf4")
    parser.add_argument("--no-double-quant", action="store_true")
    parser.add_argument("--theirs", action="store_true")
    args = parser.parse_args()
    flags = ["--type", args.type, *(["--no-double-quant"] if args.no_double_quant else [])]
    rows = {}
    for case in sorted(p.parent for p in args.cases.glob("*/case.json")):
        record = json.loads((case / "case.json").read_text())
        ids = numpy.load(case / "input_ids.npy")
        found = []
        for part in (theirs,) if args.theirs else (merged, *([] if args.skip_quantize else [quantized])):
            scratch = Path(tempfile.mkdtemp(prefix="nibble-written-"))
            try:
                got, want = part(case, ids, scratch, flags)
                found.append(float(abs(got - want).max()))
                if found[-1] > 1e-4 * max(1.0, float(numpy.sqrt((want ** 2).mean()))):
                    print(f"{case.name} {part.__name__}: logits differ by {found[-1]:.2g}", flush=True)
            except Exception as error:
                print(f"{case.name} {part.__name__}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                found.append(float("nan"))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        rows.setdefault(record["family"], []).append(found)
    for family, found in rows.items():
        print(f"| {family} | {len(found)} | " + " | ".join(f"{max(values):.1e}" for values in zip(*found)) + " |")


if __name__ == "__main__":
    main()
