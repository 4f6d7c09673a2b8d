// nibble quantize: a 16/32-bit model directory as a 4-bit one in the layout of bitsandbytes.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/unicode/visible_text.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/quant/tables.h"

namespace nibble::cli {

namespace {

struct QuantizeFlags {
  std::string model, out, type = "nf4";
  QuantizeModelOptions options;
  std::vector<std::string> skip;
  int threads = 0;
  bool json = false;
};

void show_progress(const std::string& tensor, uint64_t done, uint64_t total) {
  std::fprintf(stderr, "\r\033[K%3.0f%% %s", 100.0 * static_cast<double>(done) / static_cast<double>(total),
               visible_text(tensor).c_str());
  if (done == total) std::fputs("\r\033[K", stderr);
}

void run(QuantizeFlags flags) {
  flags.options.codec.type = *find_quant_type(flags.type);
  if (!flags.skip.empty()) flags.options.skip_modules = flags.skip;
  if (isatty(STDERR_FILENO) == 1) flags.options.progress = show_progress;
  LocalRank rank(flags.threads);
  const QuantizeModelReport report = quantize_model(flags.model, flags.out, flags.options, rank.context());
  if (flags.json)
    return print_json({{"quantized", report.quantized},
                       {"copied", report.copied},
                       {"source_bytes", report.source_bytes},
                       {"bytes", report.bytes}});
  say(stdout, "%s: %s in 4 bits, %lld as they were; %s instead of %s", flags.out.c_str(),
      count_text(report.quantized, "tensor").c_str(), static_cast<long long>(report.copied),
      bytes_text(static_cast<double>(report.bytes)).c_str(),
      bytes_text(static_cast<double>(report.source_bytes)).c_str());
  if (report.experts > 0) {
    say(stdout,
        "note: experts are in 4 bits, which nibble loads and Transformers 5 does not; --skip leaves them as they are");
  }
}

}  // namespace

void add_quantize_command(Command& nibble) {
  auto flags = std::make_shared<QuantizeFlags>();
  QuantizeOptions& codec = flags->options.codec;
  Command command = nibble.subcommand("quantize", "Write a 4-bit copy of a model that bitsandbytes can load");
  model_option(command, flags->model, "Model directory, or ID in the Hugging Face cache; 16/32-bit").required();
  command.option("--out", flags->out, "Directory to write").required().not_empty();
  command.option("--type", flags->type, "nf4 or fp4").one_of({"nf4", "fp4"}).shows_default();
  command.flag("--double-quant,!--no-double-quant", codec.double_quant, "Quantize the scales as well (default)");
  command.option("--block-size", codec.block_size, "Weights that share a scale: 32, 64, ..., 4096").shows_default();
  command.option("--skip", flags->skip, "Modules kept as they are (default: the head)").comma_separated();
  command.option("--threads", flags->threads, "Threads (0: all cores)").between(0, kMostThreads);
  command.force_flag(flags->options.replace, "a directory that nibble wrote");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble quantize --model llama --out llama-nf4");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
