"""Parquet and Arrow files as `datasets` and pyarrow write them, each with its rows as pyarrow reads them, for
tests/core/data/tables/table_test.cpp (requirements.txt has the versions).

usage: tables.py              writes the fixtures to tests/data/goldens/tables, small ones to tests/fuzz/seeds
       tables.py OUT --random N    N tables put together at random; then NIBBLE_TABLES=OUT test_core_data
"""
import argparse
import datetime
import decimal
import json
import math
import pathlib
import random
import shutil
import tempfile

import datasets
import polars
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parents[1] / "data/goldens/tables"
WORDS = ["", "a", "the dog", "Wie geht's?", "\"quoted\"\n\tnew \\ line", "日本語 \U0001f600", "x" * 70, "\x01"]


def is_read(kind):
    """Whether nibble has a form for the type."""
    if pa.types.is_dictionary(kind):
        return is_read(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return is_read(kind.value_type)
    if pa.types.is_struct(kind):
        return any(is_read(field.type) for field in kind)
    return not (pa.types.is_map(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind)
                or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind))


def plain(value, kind):
    """A value as JSON has it."""
    if value is None:
        return None
    if pa.types.is_dictionary(kind):
        return plain(value, kind.value_type)
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind if is_read(field.type)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [plain(one, kind.value_type) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def numbers(table):
    """Times as the numbers that are stored."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else
               column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(column.type) else column
               for column in table.columns]
    return pa.table(columns, names=table.column_names)


def write_rows(path, table):
    table = numbers(table)
    names = [field for field in table.schema if is_read(field.type)]
    rows = [{field.name: plain(row[field.name], field.type) for field in names} for row in table.to_pylist()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def parquet(out, name, table, **options):
    if "half" in table.column_names:
        table = table.drop_columns("half")  # bytes to nibble there
    pq.write_table(table, out / f"{name}.parquet", **options)
    write_rows(out / f"{name}.parquet.jsonl", pq.read_table(out / f"{name}.parquet"))


def arrow(out, name, table, as_file=False, batch=None, **options):
    new = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with new(out / f"{name}.arrow", table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=batch)
    source = pa.memory_map(str(out / f"{name}.arrow"))
    opened = pa.ipc.open_file(source) if as_file else pa.ipc.open_stream(source)
    write_rows(out / f"{name}.arrow.jsonl", opened.read_all())


def conversations(rng, count):
    """What people train on: messages, some with tool calls, and columns of all kinds beside."""
    rows = []
    for i in range(count):
        messages = [{"role": rng.choice(["user", "assistant"]), "content": rng.choice([None, *WORDS]),
                     "weight": rng.choice([None, 0, 1]),
                     "tool_calls": rng.choice([None, [], [{"name": "f", "arguments": rng.choice(WORDS)}]])}
                    for _ in range(rng.randrange(4))]
        rows.append({
            "messages": rng.choice([None, messages, messages]), "prompt": f"question {i}", "label": rng.choice([None, True, False]),
            "answer": rng.choice([None, *WORDS]), "input_ids": [rng.randrange(-2**31, 2**31) for _ in range(rng.randrange(5))],
            "score": rng.choice([None, 0.5, -1e300, math.nan, math.inf, 3.0]), "count": rng.choice([None, -2**63, 2**63 - 1, 7]),
            "nested": rng.choice([None, [], [[]], [None, ["a", None]], [["b"], [], ["c", "d"]]]),
            "meta": rng.choice([None, {"inside": None}, {"inside": {"x": None}}, {"inside": {"x": i}}]),
            "source": rng.choice(["web", "book"]), "nothing": None, "image": b"\x00\xff",
        })
    kinds = pa.schema([
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64()),
                                         ("tool_calls", pa.list_(pa.struct([("name", pa.string()),
                                                                            ("arguments", pa.string())])))]))),
        ("prompt", pa.string()), ("label", pa.bool_()), ("answer", pa.string()), ("input_ids", pa.list_(pa.int32())),
        ("score", pa.float64()), ("count", pa.int64()), ("nested", pa.list_(pa.list_(pa.string()))),
        ("meta", pa.struct([("inside", pa.struct([("x", pa.int64())]))])), ("source", pa.string()),
        ("nothing", pa.null()), ("image", pa.binary())])
    return pa.Table.from_pylist(rows, schema=kinds)


def every_type(rng, count):
    """One column of each type that Arrow writes in a form of its own."""
    def column(kind, values):
        return pa.array([rng.choice([None, *values]) for _ in range(count)], kind)

    columns = {f"{kind}": column(kind, [0, 1, 2**(kind.bit_width - 1) - 1]) for kind in
               [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]}
    columns["unsigned"] = column(pa.uint64(), [2**64 - 1])
    columns["unsigned32"] = column(pa.uint32(), [2**32 - 1])
    columns["half"] = column(pa.float16(), [0.5, -2.0, 6.103515625e-05, 5.960464477539063e-08, 65504.0])
    columns["single"] = column(pa.float32(), [0.5, -1.25, 2.0**100])
    columns["large"] = column(pa.large_string(), WORDS)
    columns["large_list"] = column(pa.large_list(pa.string()), [[], ["a"], [None, "b"]])
    columns["pair"] = column(pa.list_(pa.int32(), 2), [[1, 2], [3, None]])
    columns["day"] = column(pa.date32(), [datetime.date(2024, 2, 29)])
    columns["time"] = column(pa.timestamp("us"), [datetime.datetime(2024, 2, 29, 1, 2, 3)])
    columns["map"] = column(pa.map_(pa.string(), pa.int32()), [[("a", 1)]])
    columns["decimal"] = column(pa.decimal128(10, 2), [decimal.Decimal("1.25")])
    columns["fixed"] = column(pa.binary(3), [b"abc"])
    columns["half_read"] = column(pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
                                  [{"bytes": b"\xff", "path": "p"}, {"bytes": None, "path": None}])
    columns["list_of_half_read"] = column(pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
                                          [[], [{"bytes": b"\xff", "path": "p"}, None]])
    columns["required"] = pa.array(range(count), pa.int64())
    schema = pa.schema([pa.field(name, array.type, nullable=name != "required") for name, array in columns.items()])
    return pa.table(list(columns.values()), schema=schema)


def dictionaries(rng, count):
    values = pa.array([rng.choice([None, *WORDS]) for _ in range(count)])
    numbers_ = pa.array([rng.choice([5, 6]) for _ in range(count)]).dictionary_encode()
    return pa.table({"word": values.dictionary_encode(), "number": numbers_,
                     "small": values.dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))})


def polars_table(out):
    """Texts as views, short and long, in several pieces of data; categories, lists of structs, bytes."""
    long = "a text of more than twelve bytes, "
    frame = polars.DataFrame({
        "text": ["a", "b" * 12, "b" * 13, None, "", long * 2, "\u00e9" * 7],
        "bytes": [b"x", b"y" * 20, None, b"", b"z", b"w", b"v"],
        "messages": [[{"role": "user", "content": long + str(i)}, {"role": "assistant", "content": "ok"}] for i in range(7)],
    }).with_columns(polars.col("text").cast(polars.Categorical).alias("word"))
    frames = polars.concat([frame, frame.with_columns(polars.col("text") + long), frame], rechunk=False)
    for name, options in [("polars", {}), ("polars_zstd", {"compression": "zstd"})]:
        frames.write_ipc(out / f"{name}.arrow", **options)
        write_rows(out / f"{name}.arrow.jsonl", pa.ipc.open_file(pa.memory_map(str(out / f"{name}.arrow"))).read_all())


def fixtures(out):
    rng = random.Random(7)
    table = conversations(rng, 25)
    types = every_type(rng, 12)
    parquet(out, "default", table)
    parquet(out, "zstd_v2", table, compression="zstd", data_page_version="2.0", data_page_size=64, write_batch_size=4,
            row_group_size=9)
    parquet(out, "gzip_plain", table, compression="gzip", use_dictionary=False, data_page_size=64, write_batch_size=4)
    parquet(out, "none_v2", table, compression="none", data_page_version="2.0", dictionary_pagesize_limit=32,
            data_page_size=32, write_batch_size=2)
    parquet(out, "old_lists", table, use_compliant_nested_type=False, version="1.0")
    parquet(out, "types", types, compression="snappy")
    arrow(out, "stream", table)
    arrow(out, "file_zstd", table, as_file=True, batch=10, compression="zstd")
    arrow(out, "types", types, batch=5)
    arrow(out, "dictionaries", dictionaries(rng, 20), batch=6)
    grown = [pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(words))
             for indices, words in [([0, 1], ["a", "b"]), ([2, None, 0], ["a", "b", "c"])]]
    with pa.ipc.new_stream(out / "delta.arrow", pa.schema([("word", grown[0].type)]),
                           options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for array in grown:
            writer.write_batch(pa.record_batch([array], names=["word"]))
    write_rows(out / "delta.arrow.jsonl", pa.ipc.open_stream(pa.memory_map(str(out / "delta.arrow"))).read_all())
    words = pa.table({"text": ["one", "two"]})  # what is refused has no rows beside it
    pq.write_table(words, out / "refused_encoding.parquet", use_dictionary=False, compression="none",
                   column_encoding={"text": "DELTA_BYTE_ARRAY"}, store_schema=False)
    listed = pa.table({"text": pa.array([["one"], []], pa.list_view(pa.string()))})
    with pa.ipc.new_file(out / "refused_list_view.arrow", listed.schema) as writer:
        writer.write_table(listed)
    polars_table(out)
    rows = table.drop_columns(["nothing", "image"]).to_pylist()
    dataset = datasets.Dataset.from_list(rows)
    dataset.to_parquet(out / "datasets.parquet")
    write_rows(out / "datasets.parquet.jsonl", pq.read_table(out / "datasets.parquet"))
    with tempfile.TemporaryDirectory() as folder:
        dataset.save_to_disk(folder)
        shutil.copy(pathlib.Path(folder) / "data-00000-of-00001.arrow", out / "datasets.arrow")
    write_rows(out / "datasets.arrow.jsonl", pa.ipc.open_stream(pa.memory_map(str(out / "datasets.arrow"))).read_all())


def seeds(out):
    """Files of a few hundred bytes, which a fuzzer gets through."""
    rows = [{"text": "abc", "n": [1, None]}, {"text": None, "n": None}, {"text": "abc", "n": []}]
    table = pa.Table.from_pylist(rows)
    chat = pa.Table.from_pylist([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}])
    flags = pa.table({"b": pa.array([True, None, False]), "x": pa.array([0.5, 1.5, None], pa.float32())})
    for folder in ("parquet", "arrow"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, one, options in [("text", table, {}), ("v2", table, {"data_page_version": "2.0", "compression": "zstd"}),
                               ("chat", chat, {"compression": "none", "use_dictionary": False}),
                               ("flags", flags, {"compression": "gzip"})]:
        pq.write_table(one, out / "parquet" / name, store_schema=False, write_statistics=False, **options)
    words = pa.table({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    for name, one, options in [("text", table, {}), ("zstd", table, {"compression": "zstd"}), ("chat", chat, {}),
                               ("flags", flags, {}), ("words", words, {})]:
        with pa.ipc.new_stream(out / "arrow" / name, one.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(one)
    with pa.ipc.new_file(out / "arrow" / "file", table.schema) as writer:
        writer.write_table(table)


def at_random(out, count):
    for i in range(count):
        rng = random.Random(i)
        table = rng.choice([conversations, every_type])(rng, rng.randrange(0, 300))
        options = {"data_page_size": rng.choice([16, 256, 1 << 20]), "write_batch_size": rng.choice([1, 16, 1024])}
        parquet(out, f"random-{i}", table, compression=rng.choice(["none", "snappy", "gzip", "zstd"]),
                use_dictionary=rng.choice([True, False]), data_page_version=rng.choice(["1.0", "2.0"]),
                version=rng.choice(["1.0", "2.4", "2.6"]), row_group_size=rng.choice([1, 7, 1000]),
                dictionary_pagesize_limit=rng.choice([16, 1 << 20]), **options)
        table = rng.choice([conversations, every_type, dictionaries])(rng, rng.randrange(0, 300))
        arrow(out, f"random-{i}", table, as_file=rng.choice([True, False]), batch=rng.choice([1, 7, 1000]),
              compression=rng.choice([None, "zstd"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", type=pathlib.Path, default=HERE)
    parser.add_argument("--random", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.random:
        at_random(arguments.out, arguments.random)
    else:
        fixtures(arguments.out)
        seeds(pathlib.Path(__file__).parent.parent / "fuzz" / "seeds")
