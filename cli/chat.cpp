// nibble chat: a conversation in the terminal.

#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "nibble/cli/commands.h"
#include "nibble/cli/model_flags.h"
#include "nibble/cli/sampling_flags.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/recipes/tokenizers.h"

namespace nibble::cli {

namespace {

struct Flags {
  ModelFlags model;
  GenerateOptions options;
  std::string chat_template, system;
};

std::string answer(Decoder& decoder, const Tokenizer& tokenizer, const std::string& prompt, const Flags& flags,
                   const StepContext& step) {
  StreamDecoder stream(tokenizer);
  std::string text;
  const auto say = [&](const std::string& piece) {
    text += piece;
    std::fputs(piece.c_str(), stdout);
    return std::fflush(stdout) == 0;
  };
  generate(decoder, tokenizer.encode(prompt, false), flags.options, step,
           [&](int32_t id) { return say(stream.push(id)); });
  say(stream.finish());
  std::puts("");
  return text;
}

void run(Flags flags) {
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(flags.model.base.path);
  const std::unique_ptr<ChatTemplate> chat = open_chat_template(flags.chat_template, *tokenizer);
  LocalRank rank(flags.model.threads);
  Decoder decoder = open_model(flags.model.base, flags.model.adapter, Train::nothing, rank.context());
  const StepContext step{.rank = rank.context(), .compute_dtype = compute_dtype_of(flags.model.compute_dtype)};
  flags.options.stop_ids = decoder.config().eos_ids;
  if (tokenizer->eos_id()) flags.options.stop_ids.push_back(*tokenizer->eos_id());

  const bool terminal = isatty(STDIN_FILENO) == 1;
  if (terminal) std::fputs("An empty line or Ctrl-D ends the conversation.\n", stderr);
  Conversation conversation;
  if (!flags.system.empty()) conversation.messages.push_back({.role = "system", .content = flags.system});
  for (std::string line;;) {
    if (terminal) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line) || line.empty()) return;
    conversation.messages.push_back({.role = "user", .content = line});
    const std::string prompt = chat->render(conversation, true).text;
    const std::string reply = answer(decoder, *tokenizer, prompt, flags, step);
    conversation.messages.push_back({.role = "assistant", .content = reply});
  }
}

}  // namespace

void add_chat_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand("chat", "Talk to a model; one message a line");
  add_model_flags(command, flags->model);
  command.option("--template", flags->chat_template,
                 "Chat template: a built-in name or a .jinja file (the model's own)");
  command.option("--system", flags->system, "System message");
  add_sampling_flags(command, flags->options);
  command.footer("Example: nibble chat --model llama-mine --template llama3");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
