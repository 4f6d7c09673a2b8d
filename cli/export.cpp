// nibble export: models and adapters for other programs.

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/parallel/launch.h"
#include "nibble/recipes/gguf/export_gguf.h"
#include "nibble/recipes/gguf/gguf_mix.h"
#include "nibble/recipes/models/merge_model.h"

namespace nibble::cli {

namespace {

struct ExportFlags {
  GgufRequest request;
  std::string format = "gguf";
  bool no_tokenizer = false, json = false;
  std::function<bool()> has_type;
};

void run(ExportFlags flags) {
  require_model(flags.request.model);
  flags.request.tokenizer = !flags.no_tokenizer;
  if (flags.request.adapter_only && flags.request.adapter.empty()) {
    throw UsageError("--adapter-only without --adapter", "name the adapter");
  }
  if (flags.request.adapter_only && !flags.request.modelfile.empty()) {
    throw UsageError("--modelfile with --adapter-only", "export the merged model: without --adapter-only");
  }
  if (flags.request.adapter_only && flags.has_type() && flags.request.type != "f32") {
    throw UsageError("--type " + flags.request.type + " with --adapter-only",
                     "leave it out: adapters are written in f32");
  }
  if (!flags.request.adapter.empty()) {
    const std::string warning = merge_warning(flags.request.adapter, flags.request.model);
    if (!warning.empty()) say(stderr, warning);
  }
  LocalRank rank;
  const GgufReport report = export_gguf(flags.request, rank.context());
  if (!report.has_tokenizer && flags.request.tokenizer && !flags.request.adapter_only) {
    say(stderr, "note: " + flags.request.model + " has no tokenizer, and so " + flags.request.out +
                    " has none: llama.cpp computes with ids alone (--no-tokenizer says that you mean it)");
  }
  if (flags.json)
    return print_json({{"architecture", report.architecture},
                       {"tensors", report.tensors},
                       {"bytes", report.bytes},
                       {"kept_in_f16", report.fallbacks.f16},
                       {"in_blocks_of_32", report.fallbacks.small_blocks},
                       {"llama_cpp_leaves_out", report.left_out}});
  say(stdout, "wrote %s: %s, %s, %s", flags.request.out.c_str(), report.architecture.c_str(),
      count_text(report.tensors, "tensor").c_str(), bytes_text(static_cast<double>(report.bytes)).c_str());
  if (report.fallbacks.f16 > 0) {
    say(stdout, "%s in f16: rows are no multiple of 32",
        count_text(report.fallbacks.f16, "matrix is", "matrices are").c_str());
  }
  if (report.fallbacks.small_blocks > 0) {
    say(stdout, "%s in Q5_0, Q5_1 or Q8_0: rows are no multiple of 256",
        count_text(report.fallbacks.small_blocks, "matrix is", "matrices are").c_str());
  }
  if (!flags.request.modelfile.empty()) {
    const std::string& file = flags.request.modelfile;
    say(stdout, "wrote " + file + ": " + shell_line({"ollama", "create", "NAME", "-f", file}));
  }
  for (const std::string& step : report.left_out) say(stdout, "llama.cpp leaves out %s", step.c_str());
}

}  // namespace

void add_export_command(Command& nibble) {
  auto flags = std::make_shared<ExportFlags>();
  GgufRequest& request = flags->request;
  Command command = nibble.subcommand("export", "Write a model, or an adapter, as a GGUF file for llama.cpp");
  add_model_and_adapter(command, request.model, request.adapter, ", merged in");
  command.flag("--adapter-only", request.adapter_only, "Write the adapter by itself (llama.cpp's --lora)");
  command.option("--format", flags->format, "Kind of file").one_of({"gguf"}).shows_default();
  command.option("--out", request.out, "File to write").required().not_empty();
  const Argument type =
      command.option("--type", request.type, "Type of the matrices: f32, f16, bf16, q8_0, q4_0, q6_k, q5_k_m, q4_k_m")
          .one_of(gguf_mix_names())
          .shows_default();
  command.option("--modelfile", request.modelfile,
                 "Also write this file for Ollama: template, ends of answers, sampling (ollama create NAME -f FILE)");
  command.flag("--no-tokenizer", flags->no_tokenizer, "Leave the tokenizer out");
  command.force_flag(request.replace, "a GGUF file");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer(
      "Example: nibble export --model llama --adapter runs/mine/adapter --format gguf --type q8_0 --out m.gguf");
  flags->has_type = [type] { return type.given(); };
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
