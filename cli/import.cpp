// nibble import: models of other programs as directories that nibble works with.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/gguf/import_gguf.h"

namespace nibble::cli {

namespace {

void run(const ImportRequest& request, bool as_json) {
  LocalRank rank;
  const ImportReport report = import_gguf(request, rank.context());
  if (as_json)
    return print_json({{"model_type", report.model_type},
                       {"tensors", report.tensors},
                       {"bytes", report.bytes},
                       {"tokenizer", report.tokenizer}});
  if (report.model_type.empty()) {
    say(stdout, "wrote %s: a tokenizer", request.out.c_str());
    return;
  }
  say(stdout, "wrote %s: %s, %s, %s%s", request.out.c_str(), report.model_type.c_str(),
      count_text(report.tensors, "tensor").c_str(), bytes_text(static_cast<double>(report.bytes)).c_str(),
      report.tokenizer ? ", with its tokenizer" : "");
}

}  // namespace

void add_import_command(Command& nibble) {
  auto request = std::make_shared<ImportRequest>();
  auto json = std::make_shared<bool>(false);
  Command command = nibble.subcommand("import", "Make a model directory from a GGUF file of llama.cpp");
  command
      .option("--model", request->file,
              "GGUF file in F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_0 or MXFP4")
      .required();
  command.option("--out", request->out, "Directory to write").required().not_empty();
  command.option("--dtype", request->dtype, "Dtype of the weights: auto (as in the file), f32, f16 or bf16")
      .one_of({"auto", "f32", "f16", "bf16"})
      .shows_default();
  command.force_flag(request->replace, "a directory that nibble wrote");
  command.flag("--json", *json, "One JSON object on stdout");
  command.footer("Example: nibble import --model llama.gguf --out llama");
  command.run([request, json] { run(*request, *json); });
}

}  // namespace nibble::cli
