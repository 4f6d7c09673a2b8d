// nibble generate: text or ids that follow a prompt.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/command_line/sampling_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/chat/turn_ends.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble::cli {

namespace {

struct GenerateFlags {
  ModelFlags model;
  GenerateOptions options;
  std::vector<Argument> of_draws;
  std::string prompt, ids;
  bool json = false;
};

std::vector<int32_t> prompt_ids(const GenerateFlags& flags, const Tokenizer* tokenizer) {
  if (!flags.ids.empty()) return read_id_rows(flags.ids, "--ids").front();
  if (tokenizer == nullptr) {
    throw InputError(flags.model.base.path, "has no tokenizer files", "give token ids with --ids");
  }
  return tokenizer->encode(flags.prompt);
}

void run(GenerateFlags flags) {
  check_sampling(flags.options.sampling, flags.of_draws);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(text_source(flags.model).tokenizer);
  const std::vector<int32_t> prompt = prompt_ids(flags, tokenizer.get());
  LocalRank rank(flags.model.threads);
  Decoder decoder = open_model(flags.model, rank.context());
  const StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  if (tokenizer) flags.options.sampling.vocabulary = tokenizer->vocab_size();
  if (flags.ids.empty()) {
    flags.options.stop_ids = decoder.config().eos_ids;
    for (const int32_t id : turn_end_ids(*tokenizer)) flags.options.stop_ids.push_back(id);
  }

  const auto tell_of_limit = [&](size_t made) {
    const int64_t limit = text_limit(decoder.config());
    if (static_cast<int64_t>(made) >= flags.options.max_new_tokens ||
        static_cast<int64_t>(prompt.size() + made) < limit)
      return;
    say(stderr, "note: ended after " + count_text(static_cast<int64_t>(made), "token") + ": the model was made for " +
                    grouped_text(limit) + ", the prompt included (max_position_embeddings)");
  };
  if (flags.json) {
    const std::vector<int32_t> ids = generate(decoder, prompt, flags.options, step);
    nlohmann::ordered_json output = {{"ids", ids}};
    if (tokenizer) output["text"] = tokenizer->decode(ids, true);
    tell_of_limit(ids.size());
    return print_json(output);
  }
  std::unique_ptr<StreamDecoder> stream = tokenizer ? std::make_unique<StreamDecoder>(*tokenizer) : nullptr;
  if (!flags.prompt.empty()) std::fputs(for_stream(stdout, flags.prompt).c_str(), stdout);
  if (stream && flags.ids.empty()) {  // the text goes on from the prompt: its first word keeps the blank before it
    for (const int32_t id : prompt) stream->push(id);
  }
  const std::vector<int32_t> ids = generate(decoder, prompt, flags.options, step, [&](int32_t id) {
    if (stream) {
      std::fputs(for_stream(stdout, stream->push(id)).c_str(), stdout);
    } else {
      std::printf("%d ", id);
    }
    return std::fflush(stdout) == 0;
  });
  std::printf("%s\n", stream ? for_stream(stdout, stream->finish()).c_str() : "");
  tell_of_limit(ids.size());
}

}  // namespace

void add_generate_command(Command& nibble) {
  auto flags = std::make_shared<GenerateFlags>();
  Command command = nibble.subcommand("generate", "Text (or ids) that follow a prompt");
  add_model_flags(command, flags->model);
  command.exactly_one_of(
      {command.option("--prompt", flags->prompt, "Text to go on from"),
       command.option("--ids", flags->ids, "Token ids to go on from: 1,403,407 (an end-of-text id does not end it)")});
  flags->of_draws = add_sampling_flags(command, flags->options);
  command.flag("--json", flags->json, "One JSON object on stdout: the new ids and their text");
  command.footer("Example: nibble generate --model llama --adapter runs/mine/adapter --prompt 'Once upon a time'");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
