#include "nibble/recipes/gguf_vocabulary.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/text/published_expressions.h"
#include "nibble/core/text/sentencepiece_model.h"
#include "nibble/recipes/tokenizers.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Metadata = std::vector<std::pair<std::string, GgufValue>>;

/// llama.cpp's token types.
enum Type : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Vocabulary {
  std::string model;  // "llama" or "gpt2"
  std::string pre;
  std::vector<std::string> tokens, merges;
  std::vector<float> scores;
  std::vector<int32_t> types;
  std::optional<bool> add_space_prefix;
};

[[noreturn]] void refuse(const fs::path& place, const std::string& what) {
  throw UsageError(what + ", which llama.cpp has no name for", "export without a tokenizer: --no-tokenizer",
                   place.string());
}

/// One step of a pre-tokenizer in a few letters, for comparison.
std::string step_of(const Json& step) {
  const std::string type = step.value("type", "");
  if (type == "ByteLevel") return step.value("use_regex", true) ? "gpt2" : "bytes";
  if (type == "Digits") return step.value("individual_digits", false) ? "digit" : "digits";
  if (type == "Punctuation") return "punctuation";
  if (type == "Split") {
    const Json pattern = step.value("pattern", Json::object());
    const std::string regex = pattern.value("Regex", "");
    if (regex == kLlama3Expression) return "llama3";
    if (regex == kQwen2Expression) return "qwen2";
    if (regex == "[0-9][0-9][0-9]") return "threes";
  }
  return "?" + type;
}

std::string pre_tokenizer_name(const Json& pre_tokenizer, const fs::path& place) {
  std::string steps;
  if (pre_tokenizer.is_object()) {
    if (pre_tokenizer.value("type", "") == "Sequence") {
      for (const Json& step : pre_tokenizer.value("pretokenizers", Json::array())) {
        steps += (steps.empty() ? "" : " ") + step_of(step);
      }
    } else {
      steps = step_of(pre_tokenizer);
    }
  }
  const std::map<std::string, std::string> names{{"gpt2", "gpt-2"},
                                                 {"llama3 bytes", "llama-bpe"},
                                                 {"qwen2 bytes", "qwen2"},
                                                 {"digit gpt2", "smollm"},
                                                 {"punctuation gpt2 digits threes", "falcon"}};
  const auto found = names.find(steps);
  if (found == names.end()) refuse(place, "the pre-tokenizer is \"" + steps + "\"");
  return found->second;
}

/// "a b" for each merge; blanks inside the parts as the byte alphabet spells them.
std::vector<std::string> merges_of(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : model.value("merges", Json::array())) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
      continue;
    }
    std::string line;
    for (const Json& part : merge) {
      line += line.empty() ? "" : " ";
      for (const char c : part.get<std::string>()) line += c == ' ' ? std::string("\u0120") : std::string(1, c);
    }
    merges.push_back(line);
  }
  return merges;
}

/// Every token as the vocabulary spells it, added ones by what they are.
void take_tokens(const Tokenizer& tokenizer, const std::set<int32_t>& added, Vocabulary& made) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string text;
    Type type = kNormal;
    try {
      text = tokenizer.token(id);
      if (added.contains(id)) type = tokenizer.is_special(id) ? kControl : kUserDefined;
    } catch (const InputError&) {  // a hole between the vocabulary and the added tokens
      type = kUnused;
    }
    if (text.empty()) text = "[PAD" + std::to_string(id) + "]";
    made.tokens.push_back(text);
    made.types.push_back(type);
  }
}

std::set<int32_t> added_ids(const Json& file) {
  std::set<int32_t> ids;
  for (const Json& token : file.value("added_tokens", Json::array())) ids.insert(token.value("id", -1));
  return ids;
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>';
}

/// A tokenizer.json of the sentencepiece kind: the rank of the merge that makes a piece stands for its score.
void take_metaspace(const Json& file, Vocabulary& made) {
  made.model = "llama";
  made.pre = "default";
  std::map<std::string, float> score_of;
  float rank = 0;
  for (const std::string& merge : merges_of(file.at("model"))) {
    const size_t blank = merge.find(' ');
    if (blank != std::string::npos) score_of.emplace(merge.substr(0, blank) + merge.substr(blank + 1), -rank);
    rank += 1;
  }
  const std::string unknown = file.at("model").value("unk_token", Json()).is_string()
                                  ? file.at("model").at("unk_token").get<std::string>()
                                  : "";
  for (size_t id = 0; id < made.tokens.size(); ++id) {
    const auto found = score_of.find(made.tokens[id]);
    made.scores.push_back(found == score_of.end() ? -rank : found->second);
    if (is_byte_token(made.tokens[id])) made.types[id] = kByte;
    if (!unknown.empty() && made.tokens[id] == unknown) made.types[id] = kUnknown;
  }
  const std::string text = file.value("normalizer", Json()).dump() + file.value("pre_tokenizer", Json()).dump();
  made.add_space_prefix = text.find("\"Prepend\"") != std::string::npos ||
                          text.find("\"always\"") != std::string::npos || text.find("\"first\"") != std::string::npos;
}

void take_sentencepiece(const SentencePieceModel& model, const fs::path& place, Vocabulary& made) {
  if (model.algorithm != SentencePieceAlgorithm::kBpe) refuse(place, "the tokenizer is a sentencepiece unigram model");
  made.model = "llama";
  made.pre = "default";
  made.scores.assign(made.tokens.size(), -10000.0f);
  for (size_t id = 0; id < std::min(model.pieces.size(), made.tokens.size()); ++id) {
    made.tokens[id] = model.pieces[id].text;
    made.scores[id] = model.pieces[id].score;
    if (made.types[id] == kNormal) made.types[id] = static_cast<Type>(model.pieces[id].kind);
  }
  made.add_space_prefix = model.normalizer.add_dummy_prefix;
}

Vocabulary from_json(const Json& file, const fs::path& directory, const Tokenizer& tokenizer) {
  const fs::path place = directory / "tokenizer.json";
  const Json& model = file.at("model");
  Vocabulary made;
  take_tokens(tokenizer, added_ids(file), made);
  if (fs::exists(directory / "tokenizer.model")) {
    take_sentencepiece(check_sentencepiece_model(read_text_file(directory / "tokenizer.model"),
                                                 (directory / "tokenizer.model").string()),
                       directory / "tokenizer.model", made);
    return made;
  }
  const bool is_bpe = model.value("type", std::string("BPE")) == "BPE" && model.contains("merges");
  if (!is_bpe) refuse(place, "the tokenizer is of type " + model.value("type", std::string("?")));
  if (model.value("byte_fallback", Json()) == true) {
    take_metaspace(file, made);
    return made;
  }
  made.model = "gpt2";
  made.pre = pre_tokenizer_name(file.value("pre_tokenizer", Json()), place);
  made.merges = merges_of(model);
  return made;
}

/// vocab.json and merges.txt; the class of the tokenizer says how it cuts.
Vocabulary from_merges(const fs::path& directory, const Tokenizer& tokenizer) {
  const fs::path settings = directory / "tokenizer_config.json";
  const std::string type =
      fs::exists(settings) ? read_json_file(settings).value("tokenizer_class", std::string()) : std::string();
  const auto first_added = static_cast<int32_t>(read_json_file(directory / "vocab.json").size());
  std::set<int32_t> added;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id >= first_added || tokenizer.is_special(id)) added.insert(id);
  }
  Vocabulary made;
  take_tokens(tokenizer, added, made);
  made.model = "gpt2";
  made.pre = type.starts_with("Qwen2") ? "qwen2" : "gpt-2";
  std::istringstream lines(read_text_file(directory / "merges.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) made.merges.push_back(line);
  }
  return made;
}

Vocabulary read_vocabulary(const fs::path& directory, const Tokenizer& tokenizer) {
  if (fs::exists(directory / "tokenizer.json")) {
    JsonLimits limits;
    limits.max_bytes = size_t{256} << 20;
    return from_json(read_json_file(directory / "tokenizer.json", limits), directory, tokenizer);
  }
  if (fs::exists(directory / "vocab.json")) return from_merges(directory, tokenizer);
  Vocabulary made;
  take_tokens(tokenizer, {}, made);
  const fs::path file = directory / "tokenizer.model";
  take_sentencepiece(check_sentencepiece_model(read_text_file(file), file.string()), file, made);
  return made;
}

void fill_up(Vocabulary& made, int64_t vocab_size, const fs::path& place) {
  const auto rows = static_cast<size_t>(vocab_size);
  if (made.tokens.size() > rows) {
    throw UsageError(
        "the tokenizer has " + std::to_string(made.tokens.size()) + " tokens, the embedding " + std::to_string(rows),
        "resize the embedding first", place.string());
  }
  while (made.tokens.size() < rows) {
    made.tokens.push_back("[PAD" + std::to_string(made.tokens.size()) + "]");
    made.types.push_back(kUnused);
    if (!made.scores.empty()) made.scores.push_back(-10000.0f);
  }
}

}  // namespace

Metadata gguf_vocabulary(const fs::path& directory, int64_t vocab_size) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(directory.string());
  if (!tokenizer) return {};
  Vocabulary made = read_vocabulary(directory, *tokenizer);
  fill_up(made, vocab_size, directory);
  Metadata metadata = {{"tokenizer.ggml.model", made.model}, {"tokenizer.ggml.pre", made.pre}};
  metadata.emplace_back("tokenizer.ggml.tokens", std::move(made.tokens));
  if (!made.scores.empty()) metadata.emplace_back("tokenizer.ggml.scores", std::move(made.scores));
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(made.types));
  if (made.model == "gpt2") metadata.emplace_back("tokenizer.ggml.merges", std::move(made.merges));
  const TokenRoles& roles = tokenizer->roles();
  const auto put = [&](const char* key, const std::optional<int32_t>& id) {
    if (id) metadata.emplace_back(key, static_cast<uint32_t>(*id));
  };
  put("tokenizer.ggml.bos_token_id", roles.bos);
  put("tokenizer.ggml.eos_token_id", roles.eos);
  put("tokenizer.ggml.unknown_token_id", roles.unk);
  put("tokenizer.ggml.padding_token_id", roles.pad);
  metadata.emplace_back("tokenizer.ggml.add_bos_token", !tokenizer->prefix_ids().empty());
  metadata.emplace_back("tokenizer.ggml.add_eos_token", false);
  if (made.add_space_prefix) metadata.emplace_back("tokenizer.ggml.add_space_prefix", *made.add_space_prefix);
  const auto chat = roles.chat_templates.find("default");
  if (chat != roles.chat_templates.end()) metadata.emplace_back("tokenizer.chat_template", chat->second);
  return metadata;
}

}  // namespace nibble
