#include "nibble/recipes/models/tokenizers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/content_hash.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/chat/builtin_template.h"
#include "nibble/core/text/chat/model_chat_template.h"
#include "nibble/core/text/chat/template_files.h"
#include "nibble/core/text/chat/turn_ends.h"
#include "nibble/recipes/environment/free_memory.h"

namespace nibble {

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& path) {
  const std::filesystem::path place(path);
  const auto is_there = [&](const char* file) { return std::filesystem::exists(place / file); };
  constexpr std::array kFiles = {"tokenizer.json", "tokenizer.model", "vocab.json"};
  if (std::filesystem::is_directory(place) && std::ranges::none_of(kFiles, is_there)) return nullptr;
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(place);
  return_free_memory();  // what its file was parsed to: more than it is itself
  return tokenizer;
}

namespace {

bool knows(const Tokenizer* tokenizer, std::span<const int32_t> ids) {
  return tokenizer && std::ranges::all_of(ids, [&](int32_t id) { return id < tokenizer->vocab_size(); });
}

std::string numbers_of(std::span<const int32_t> ids) {
  return joined(ids, " ", [](int32_t id) { return std::to_string(id); });
}

}  // namespace

std::string text_of(const Tokenizer* tokenizer, std::span<const int32_t> ids) {
  if (!knows(tokenizer, ids)) return numbers_of(ids);
  std::string text;
  const auto special = [&](int32_t id) { return tokenizer->is_special(id); };
  for (auto begin = ids.begin(); begin != ids.end();) {
    const auto end = std::find_if(begin, ids.end(), special);
    const std::string part = tokenizer->decode({begin, end});
    if (!text.empty() && !part.empty() && text.back() != '\n') text += '\n';
    text += part;
    begin = std::find_if_not(end, ids.end(), special);
  }
  return text;
}

std::string answer_text(const Tokenizer* tokenizer, std::span<const int32_t> ids) {
  return knows(tokenizer, ids) ? tokenizer->decode(ids, true) : numbers_of(ids);
}

std::unique_ptr<ChatTemplate> open_chat_template(const std::string& name, const Tokenizer& tokenizer) {
  const TokenRoles& roles = tokenizer.roles();
  const auto model_template = [&](const std::map<std::string, std::string>& sources, const std::string& place) {
    return std::make_unique<ModelChatTemplate>(ModelTemplates(sources, roles.special_tokens, place));
  };
  std::error_code ignored;
  if (name.ends_with(".jinja") || std::filesystem::is_regular_file(name, ignored))
    return model_template({{"default", read_text_file(name)}}, name);
  if (!name.empty()) return builtin_chat_template(name, template_tokens(tokenizer));
  if (!roles.chat_templates.empty()) return model_template(roles.chat_templates, "chat_template");
  throw InputError("", "the model has no chat template",
                   "name a built-in one (" + joined(builtin_chat_template_names()) +
                       ") or a .jinja file: --template NAME, in recipes data.template");
}

std::vector<int32_t> answer_ends(const Tokenizer& tokenizer, const std::string& chat_template) {
  return chat_template.empty() ? turn_end_ids(tokenizer)
                               : turn_end_ids(tokenizer, open_chat_template(chat_template, tokenizer).get());
}

std::string chat_template_source(const std::string& name) {
  std::error_code ignored;
  const bool is_file = name.ends_with(".jinja") || std::filesystem::is_regular_file(name, ignored);
  return is_file ? read_text_file(name) : builtin_chat_template_source(name);
}

AdapterCompanions adapter_companions(const std::filesystem::path& tokenizer, const std::string& chat_template,
                                     const Observer& observer) {
  const std::filesystem::path directory =
      std::filesystem::is_directory(tokenizer) ? tokenizer : std::filesystem::absolute(tokenizer).parent_path();
  AdapterCompanions companions{.tokenizer = directory};
  try {
    const std::vector<std::filesystem::path> roots = link_roots(directory);
    for (const auto& file : tokenizer_files(directory)) follow_links_within(directory / file, roots);
  } catch (const InputError& error) {
    observer.message(std::string("note: the adapter will not keep its tokenizer: ") + error.what());
    companions.tokenizer.clear();
  }
  if (!chat_template.empty()) companions.chat_template = chat_template_source(chat_template);
  return companions;
}

namespace {

// The tokenizer's own files in a directory, name -> text: two directories that have the same encode the same.
std::map<std::string, std::string> tokens_of(const std::filesystem::path& directory) {
  std::map<std::string, std::string> files;
  for (const std::filesystem::path& file : tokenizer_files(directory)) {
    const bool is_template = file.has_parent_path() || file.string().starts_with("chat_template");
    if (!is_template) files[file.string()] = hash_file(directory / file);
  }
  return files;
}

std::string default_template(const std::filesystem::path& directory) {
  const auto templates = read_template_files(directory).templates;
  const auto found = templates.find("default");
  return found == templates.end() ? "" : found->second;
}

}  // namespace

TextSource find_text_source(const std::string& model, const std::string& adapter,
                            const std::optional<std::string>& chat_template) {
  TextSource source{model, chat_template.value_or(""), {}};
  if (adapter.empty() || !std::filesystem::is_directory(model)) return source;
  const auto own = tokens_of(adapter);
  const bool has_tokenizer =
      own.contains("tokenizer.json") || own.contains("tokenizer.model") || own.contains("vocab.json");
  if (has_tokenizer && own != tokens_of(model)) {
    source.tokenizer = adapter;
    source.notes.push_back("the adapter has another tokenizer than the model: the adapter's is used");
  }
  if (chat_template != "") return source;
  const std::string trained_with = default_template(adapter), of_model = default_template(model);
  if (trained_with.empty() || trained_with == of_model) return source;
  const std::filesystem::path file = std::filesystem::path(adapter) / "chat_template.jinja";
  if (std::filesystem::is_regular_file(file)) {
    source.chat_template = file.string();
  } else if (has_tokenizer) {
    source.tokenizer = adapter;  // which has chat_template.json
  }
  for (const std::string& name : builtin_chat_template_names()) {
    if (trained_with == builtin_chat_template_source(name)) source.chat_template = name;
  }
  if (!of_model.empty()) {
    source.notes.push_back(
        "the adapter was trained with another chat template than the model's: the adapter's is used");
  }
  return source;
}

std::vector<std::string> missing_mark_warnings(const std::string& chat_template, const Encoder& encoder) {
  std::vector<std::string> warnings;
  std::error_code ignored;
  if (!encoder.render_chat || chat_template.empty() || chat_template.ends_with(".jinja") ||
      std::filesystem::is_regular_file(chat_template, ignored)) {
    return warnings;
  }
  for (const std::string& mark : builtin_chat_template_marks(chat_template)) {
    std::vector<int32_t> ids;
    encoder.encode(mark, [&](std::span<const TokenSpan> tokens) {
      for (const TokenSpan& token : tokens) ids.push_back(token.id);
    });
    if (ids.size() == 1 && encoder.token_texts(ids).at(0).find(mark) != std::string::npos) continue;
    warnings.push_back("warning: the tokenizer has no token " + mark + ", which the template " + chat_template +
                       " writes: it stands as text in " + std::to_string(ids.size()) +
                       " tokens; add it to the tokenizer, or choose the template of the model's family");
  }
  return warnings;
}

int64_t tokenizer_vocab_size(const std::string& path) {
  std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(path);
  const int64_t tokens = tokenizer ? tokenizer->vocab_size() : 0;
  tokenizer.reset();
  return_free_memory();
  return tokens;
}

int64_t rows_for_tokenizer(const std::string& path, int64_t tokens, int64_t model_rows) {
  if (tokens <= model_rows) return model_rows;
  if (tokens - model_rows <= model_rows / 8) return tokens;
  throw InputError(
      path, "the tokenizer has " + std::to_string(tokens) + " tokens, the model only " + std::to_string(model_rows),
      "use the tokenizer that belongs to the model");
}

std::string added_tokens_note(int64_t model_rows, int64_t rows) {
  if (rows == model_rows) return "";
  return "note: " + count_text(rows - model_rows, "token was", "tokens were") +
         " added to the tokenizer: each gets a row of its own, which is trained";
}

std::map<std::string, std::string> tokenizer_contents(const std::filesystem::path& path,
                                                      const std::string& chat_template) {
  std::map<std::string, std::string> contents;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) contents[path.filename().string()] = content_hash(path);
  if (const std::filesystem::path directory = contents.empty() ? path : path.parent_path(); !directory.empty()) {
    for (const std::filesystem::path& file : tokenizer_files(directory)) {
      contents[file.string()] = content_hash(directory / file);
    }
  }
  if (std::filesystem::is_regular_file(chat_template, ignored)) contents["data.template"] = content_hash(chat_template);
  return contents;
}

namespace {

// Of all that decides ids and rendered text: the tokenizer's files, the templates, and the day where one asks for it.
std::string fingerprint_of(const std::filesystem::path& path, const std::string& chat_template,
                           const Tokenizer& tokenizer) {
  Hasher hasher;
  const auto add = [&](const std::string& text) {
    const uint64_t size = text.size();
    hasher.update(std::as_bytes(std::span(&size, 1)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  for (const auto& [name, hash] : tokenizer_contents(path, chat_template)) add(name + " " + hash);
  std::error_code ignored;
  const std::filesystem::path config =
      (std::filesystem::is_directory(path) ? path : path.parent_path()) / "config.json";
  add(std::filesystem::is_regular_file(config, ignored) ? hash_file(config) : "");
  std::string templates = chat_template;
  if (std::filesystem::is_regular_file(chat_template, ignored)) templates += read_text_file(chat_template);
  for (const auto& [name, text] : tokenizer.roles().chat_templates) templates += name + text;
  if (templates.find("strftime_now") != std::string::npos) {
    add(std::to_string(
        std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()).time_since_epoch().count()));
  }
  return hasher.hex();
}

}  // namespace

Encoder open_encoder(const std::string& path, const std::string& chat_template, int64_t vocab_size, bool grows) {
  const std::shared_ptr<const Tokenizer> tokenizer = find_tokenizer(path);
  if (!tokenizer) return make_ids_encoder(vocab_size, path);
  if (grows) vocab_size = rows_for_tokenizer(path, tokenizer->vocab_size(), vocab_size);
  if (tokenizer->vocab_size() > vocab_size) {
    throw InputError(path,
                     "the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " tokens, the model only " +
                         std::to_string(vocab_size),
                     "use the tokenizer that belongs to the model");
  }
  std::shared_ptr<const ChatTemplate> chat;
  std::optional<InputError> broken;
  if (!chat_template.empty()) {
    chat = open_chat_template(chat_template, *tokenizer);
  } else if (!tokenizer->roles().chat_templates.empty()) {
    try {
      chat = open_chat_template("", *tokenizer);
    } catch (const InputError& error) {  // of no matter until a conversation needs it
      broken = error;
    }
  }
  Encoder encoder = make_encoder(tokenizer, chat, vocab_size);
  encoder.fingerprint = fingerprint_of(path, chat_template, *tokenizer);
  if (broken) {
    encoder.render_chat = [broken](const Conversation&) -> RenderedChat { throw *broken; };
    encoder.render_text = [broken](const Conversation&, bool) -> std::string { throw *broken; };
  }
  return encoder;
}

}  // namespace nibble
