"""TensorBoard's own reader on the event files of a run, held against metrics.jsonl and samples.jsonl.

    python tests/oracles/tensorboard_events.py RUN_DIR
"""
import json
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(run):
    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    compared = 0
    for split, names in {"train": ["loss", "lr", "grad_norm", "tokens_per_second", "peak_memory_bytes"],
                         "eval": ["loss", "perplexity"]}.items():
        of_split = [line for line in lines if line["split"] == split]
        for name in (n for n in names if of_split and of_split[0][n] is not None):
            events = reader.Scalars(f"{split}/{name}")
            assert [e.step for e in events] == [line["step"] for line in of_split], (split, name, len(events))
            for event, line in zip(events, of_split):
                assert abs(event.value - line[name]) <= 1e-6 * abs(line[name]) + 1e-30, (event, line)
                compared += 1
    samples = run / "samples.jsonl"
    if samples.exists():
        texts = reader.Tensors("samples")
        assert texts and "text" in reader.summary_metadata["samples"].plugin_data.plugin_name
        compared += len(texts)
    assert compared > 0
    print(f"{compared} values of {run} are what TensorBoard reads")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
