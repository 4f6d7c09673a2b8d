// nibble chat: a conversation in the terminal.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/cli/chat/line_reader.h"
#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/command_line/sampling_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/core/text/matching/stop_text.h"
#include "nibble/recipes/models/arithmetic.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble::cli {

namespace {

struct Flags {
  ModelFlags model;
  GenerateOptions options;
  std::vector<Argument> of_draws;
  std::string chat_template, system;
};

constexpr const char* kHelp =
    "/adapter on|off  answer with the adapter or without it (/adapter alone: change that)\n"
    "/again           forget the last answer and answer again\n"
    "/reset           forget the conversation\n"
    "/system TEXT     forget the conversation and start with this system message\n"
    "/quit            end (an empty line, exit, quit or Ctrl-D as well)\n"
    "A pasted text of several lines is one message, which Enter sends.\n"
    "Ctrl-C ends the answer that is written.\n";

volatile sig_atomic_t end_answer = 0;  // a signal handler has no other way

/// While it lives, Ctrl-C sets end_answer; a second one does what it did before.
class CtrlC {
 public:
  CtrlC() {
    end_answer = 0;
    sigaction(SIGINT, nullptr, &former_);
    if (former_.sa_handler == SIG_IGN) return;
    struct sigaction action {};
    action.sa_handler = [](int) {
      const int error = errno;
      end_answer = 1;
      constexpr std::string_view kSaid = "\nending the answer; Ctrl-C again leaves\n";
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSaid.data(), kSaid.size());
      errno = error;
      sigaction(SIGINT, &former_, nullptr);
    };
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
  }
  ~CtrlC() { sigaction(SIGINT, &former_, nullptr); }
  CtrlC(const CtrlC&) = delete;
  CtrlC& operator=(const CtrlC&) = delete;

 private:
  inline static struct sigaction former_ {};
};

/// A conversation, and the model that answers: with the adapter, or the base alone.
class Chat {
 public:
  Chat(Flags flags, LineReader& lines)
      : flags_(std::move(flags)),
        lines_(lines),
        text_(text_source(flags_.model, flags_.chat_template)),
        tokenizer_(load_tokenizer(text_.tokenizer)),
        template_(open_chat_template(text_.chat_template, *tokenizer_)),
        rank_(flags_.model.threads),
        adapter_on_(!flags_.model.adapter.empty()) {
    const Encoder encoder = make_encoder(tokenizer_, template_, tokenizer_->vocab_size());
    for (const std::string& warning : missing_mark_warnings(text_.chat_template, encoder)) cli::say(stderr, warning);
    warn_of_other_base(flags_.model);
    flags_.options.sampling.vocabulary = tokenizer_->vocab_size();
    find_end_of_turn();
    open(adapter_on_);
    reset();
  }

  /// False when the conversation is over. An error is told, and leaves the conversation as it was.
  bool take(const std::string& line);
  /// Of take().
  int64_t errors() const { return errors_; }

 private:
  void open(bool with_adapter);
  void find_end_of_turn();
  void reset();
  void answer();
  bool base_knows_template() const;
  bool command(const std::string& line);
  void switch_adapter(const std::string& state);

  Flags flags_;
  LineReader& lines_;
  int64_t errors_ = 0;
  TextSource text_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  LocalRank rank_;
  bool adapter_on_;
  std::optional<Decoder> model_;
  int64_t base_vocabulary_ = 0;
  bool base_changed_ = false;      // by the adapter: the base alone is another model
  std::optional<int32_t> end_id_;  // the special token that ends a turn
  std::string end_text_;           // or the text that does where it is none
  Conversation conversation_;
};

void Chat::open(bool with_adapter) {
  use_arithmetic(flags_.model.base);
  Decoder model = open_base(flags_.model.base, rank_.context());
  base_vocabulary_ = model.config().vocab_size;
  if (with_adapter) {
    const PeftAdapter adapter = read_peft_directory(flags_.model.adapter);
    base_changed_ = load_adapter(model, adapter, false, rank_.context()).base_changed;
  }
  model_.emplace(std::move(model));
  adapter_on_ = with_adapter;
  flags_.options.stop_ids = model_->config().eos_ids;
  if (tokenizer_->eos_id()) flags_.options.stop_ids.push_back(*tokenizer_->eos_id());
  if (end_id_) flags_.options.stop_ids.push_back(*end_id_);
}

// A model that was trained on the template ends its answers with the template's own mark, whatever else its files say.
void Chat::find_end_of_turn() {
  const std::string mark = end_of_turn(*template_);
  const std::vector<int32_t> ids = tokenizer_->encode(mark, false);
  if (!ids.empty() && tokenizer_->is_special(ids.front())) {
    end_id_ = ids.front();
  } else {
    end_text_ = mark;
  }
}

void Chat::reset() {
  conversation_ = {};
  if (!flags_.system.empty()) conversation_.messages.push_back({.role = "system", .content = flags_.system});
}

void Chat::answer() {
  const StepContext step{
      .rank = rank_.context(), .compute_dtype = flags_.model.base.dtype(), .adapters_enabled = adapter_on_};
  const std::vector<int32_t> prompt = tokenizer_->encode(template_->render(conversation_, true).text, false);
  const int64_t limit = text_limit(model_->config());
  int64_t length = static_cast<int64_t>(prompt.size());
  if (length >= limit) {
    throw InputError("the conversation",
                     "has " + std::to_string(length) + " tokens with this message, the model holds " +
                         std::to_string(limit) + " positions",
                     "the message is left out: shorten it, or forget the conversation with /reset");
  }
  std::optional<CtrlC> stop;
  if (lines_.on_a_terminal()) stop.emplace();
  const std::jthread typing = lines_.take_typed();
  StreamDecoder stream(*tokenizer_);
  StopText end(end_text_);
  std::string text;
  const auto say = [&](const std::string& piece) {
    text += piece;
    std::fputs(for_stream(stdout, piece).c_str(), stdout);
    return std::fflush(stdout) == 0;
  };
  generate(*model_, prompt, flags_.options, step, [&](int32_t id) {
    ++length;
    return say(end.push(stream.push(id))) && !end.found() && !(stop && end_answer);
  });
  say(end.push(stream.finish()));
  say(end.finish());
  std::puts("");
  conversation_.messages.push_back({.role = "assistant", .content = text});
  if (length >= limit) {
    cli::say(stderr, "the model's " + std::to_string(limit) + " positions are full: /reset forgets the conversation");
  }
}

// An adapter may bring tokens, which its chat template writes.
bool Chat::base_knows_template() const {
  const std::string text = template_->render({.messages = {{.role = "user", .content = "?"}}}, true).text;
  return std::ranges::all_of(tokenizer_->encode(text, false), [&](int32_t id) { return id < base_vocabulary_; });
}

void Chat::switch_adapter(const std::string& state) {
  if (flags_.model.adapter.empty()) {
    std::fputs("there is no adapter: start with --adapter DIR\n", stderr);
    return;
  }
  if (!state.empty() && state != "on" && state != "off") {
    return say(stderr, "/adapter takes on or off, not " + state + "; alone it changes between them");
  }
  const bool on = state.empty() ? !adapter_on_ : state == "on";
  if (!on && base_changed_ && !base_knows_template()) {
    return say(stderr,
               "the adapter stays on: the chat template writes tokens that came with it, and the base has none");
  }
  if (base_changed_ && on != adapter_on_) open(on);
  adapter_on_ = on;
  std::fprintf(stderr, "the adapter is %s\n", adapter_on_ ? "on" : "off");
}

bool Chat::command(const std::string& line) {
  const size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (name == "/quit") return false;
  if (name == "/adapter") {
    switch_adapter(rest);
  } else if (name == "/reset") {
    reset();
    say(stderr, "the conversation is forgotten");
  } else if (name == "/system") {
    flags_.system = rest;
    reset();
    say(stderr, "the conversation starts again with " + std::string(rest.empty() ? "no" : "this") + " system message");
  } else if (name == "/again") {
    auto& messages = conversation_.messages;
    if (!messages.empty() && messages.back().role == "assistant") messages.pop_back();
    const bool asked = !messages.empty() && messages.back().role == "user";
    asked ? answer() : say(stderr, "nothing was asked yet that could be answered again");
  } else {
    const std::string meant = nearest(name, {"/adapter", "/again", "/reset", "/system", "/quit", "/help"});
    if (name != "/help") say(stderr, name + " is no command" + (meant.empty() ? "" : "; did you mean " + meant + "?"));
    std::fputs(kHelp, stderr);
  }
  return true;
}

bool Chat::take(const std::string& line) {
  if (line.empty() || line == "exit" || line == "quit") return false;
  const Conversation before = conversation_;
  try {
    if (line.starts_with('/')) return command(line);
    conversation_.messages.push_back({.role = "user", .content = line});
    answer();
  } catch (const Error& error) {
    ++errors_;
    conversation_ = before;
    say_error(error.what());
  }
  return true;
}

void run(const Flags& flags) {
  check_sampling(flags.options.sampling, flags.of_draws);
  LineReader lines("> ");
  Chat chat(flags, lines);
  if (lines.on_a_terminal()) std::fputs("An empty line ends the conversation, /help lists commands.\n", stderr);
  std::string line;
  while (lines.read(line) && chat.take(line)) {
  }
  if (lines.on_a_terminal() || chat.errors() == 0) return;
  throw InputError("", count_text(chat.errors(), "line") + " got no answer", "the errors above say why");
}

}  // namespace

void add_chat_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand("chat", "Talk to a model; one message a line");
  add_model_flags(command, flags->model);
  command.option("--template", flags->chat_template,
                 "Chat template: a built-in name or a .jinja file (the adapter's, else the model's own)");
  command.option("--system", flags->system, "System message");
  flags->of_draws = add_sampling_flags(command, flags->options);
  command.footer(
      "Lines that begin with / are commands: /adapter off answers with the base alone, /help lists them.\n"
      "Example: nibble chat --model llama --adapter runs/mine/adapter --template llama3");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
