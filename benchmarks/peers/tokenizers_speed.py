"""Hugging Face's tokenizers on one core, on the lines of tokenizer_benchmark: pip install tokenizers==0.23.3
NIBBLE_TEST_ASSETS=DIR RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false python3 tokenizers_speed.py"""
import os
import pathlib
import time

from tokenizers import Tokenizer

assets = pathlib.Path(os.environ["NIBBLE_TEST_ASSETS"])
text = (assets / "data-wikitext2/test.txt").read_text(encoding="utf-8")
lines, size = text.splitlines(keepends=True), len(text.encode("utf-8"))
for name in ("tok-gpt2/tokenizer.json", "tok-tinyllama-hf/tinyllama_tokenizer.json", "tok-neox-pythia/20B_tokenizer.json"):
    tokenizer = Tokenizer.from_file(str(assets / name))
    for form, run in (("encode", lambda: [tokenizer.encode(line, add_special_tokens=False) for line in lines]),
                      ("encode_batch_fast", lambda: tokenizer.encode_batch_fast(lines, add_special_tokens=False))):
        run()
        start = time.process_time()
        run()
        print(f"{name} {form}: {size / (time.process_time() - start) / 1e6:.1f} MB/s")
