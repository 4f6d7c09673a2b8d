// nibble logits: the logits of given token ids, as an .npy file.

#include <algorithm>
#include <memory>
#include <numeric>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble::cli {

namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string ids, out;
  std::vector<int64_t> lengths;
};

// The documents of a row; the whole row where no lengths are given.
std::vector<Sample> documents(const std::vector<int32_t>& row, std::vector<int64_t> lengths) {
  const int64_t length = std::ssize(row);
  if (lengths.empty()) lengths = {length};
  const auto fits = [&](int64_t one) { return one >= 1 && one <= length; };
  if (!std::ranges::all_of(lengths, fits) || std::reduce(lengths.begin(), lengths.end()) != length) {
    throw UsageError("the documents do not fill rows of " + std::to_string(length) + " ids",
                     "give lengths from 1 on that add up to " + std::to_string(length), "--lengths");
  }
  std::vector<Sample> samples;
  for (auto begin = row.begin(); const int64_t one : lengths) {
    samples.push_back({.ids = {begin, begin + one}});
    begin += one;
  }
  return samples;
}

void require_finite(Decoder& decoder, const Tensor& logits, int64_t position, const std::string& of) {
  const int64_t at = ops::first_nonfinite(logits);
  if (at < 0) return;
  throw_nonfinite("logits of position " + std::to_string(position + at / logits.dim(1)) + of, decoder);
}

void run(const LogitsFlags& flags) {
  guard_output(flags.out, {flags.model.base.path, flags.model.adapter, flags.ids});
  require_own_file(flags.out, begins_with(NpyWriter::mark(DType::f32)), "nibble logits");
  const std::vector<std::vector<int32_t>> rows = read_id_rows(flags.ids, "--ids");
  documents(rows.front(), flags.lengths);  // refuses them before the model is opened
  LocalRank rank(flags.model.threads);
  Decoder decoder = open_model(flags.model, rank.context());
  const StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  const int64_t length = static_cast<int64_t>(rows.front().size()), vocabulary = decoder.config().head_rows();
  NpyWriter out(flags.out, {static_cast<int64_t>(rows.size()), length, vocabulary}, DType::f32);
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::string of = rows.size() > 1 ? " of row " + std::to_string(row) : "";
    const Batch batch = make_batch(documents(rows[row], flags.lengths), rank.context().pool);
    decoder.logits(batch, step, [&](int64_t position, const Tensor& logits) {
      require_finite(decoder, logits, position, of);
      out.append(logits);
    });
  }
  out.finish();
}

}  // namespace

void add_logits_command(Command& nibble) {
  auto flags = std::make_shared<LogitsFlags>();
  Command command = nibble.subcommand("logits", "Logits of token ids, float32 [batch, T, V]");
  command.group(kCheckingTools);
  add_model_flags(command, flags->model);
  command.option("--ids", flags->ids, "Token ids: FILE.npy [B, T], or a list 1,403,407").required();
  command
      .option("--lengths", flags->lengths,
              "Each row is packed documents of these lengths, 5,3 of 8 ids (default: one document)")
      .comma_separated();
  command.option("--out", flags->out, "Result, FILE.npy").required().not_empty();
  command.footer("Example: nibble logits --model llama --ids 1,403,407 --out logits.npy");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
