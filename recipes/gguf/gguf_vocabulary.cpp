#include "nibble/recipes/gguf/gguf_vocabulary.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/chat/turn_ends.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_model.h"
#include "nibble/recipes/gguf/gguf_pre_tokenizer.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
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
  std::vector<std::string> left_out;
};

/// "a b" for each merge; blanks inside the parts as the byte alphabet spells them.
std::vector<std::string> merges_of(const json& model) {
  std::vector<std::string> merges;
  for (const json& merge : model.value("merges", json::array())) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
      continue;
    }
    std::string line;
    for (const json& part : merge) {
      line += line.empty() ? "" : " ";
      for (const char c : part.get<std::string>()) line += c == ' ' ? std::string("\u0120") : std::string(1, c);
    }
    merges.push_back(line);
  }
  return merges;
}

/// Every token as the vocabulary spells it, added ones by what they are.
void take_tokens(const Tokenizer& tokenizer, const std::set<int32_t>& added, Vocabulary& result) {
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
    result.tokens.push_back(text);
    result.types.push_back(type);
  }
}

std::set<int32_t> added_ids(const json& file) {
  std::set<int32_t> ids;
  for (const json& token : file.value("added_tokens", json::array())) ids.insert(token.value("id", -1));
  return ids;
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>';
}

/// A tokenizer.json of the sentencepiece kind: the rank of the merge that makes a piece stands for its score.
void take_metaspace(const json& file, const fs::path& place, Vocabulary& result) {
  refuse_other_normalizers(file, false, place);
  result.left_out = gguf_left_out(file);
  result.model = "llama";
  result.pre = "default";
  std::map<std::string, float> score_of;
  float rank = 0;
  for (const std::string& merge : merges_of(file.at("model"))) {
    const size_t blank = merge.find(' ');
    if (blank != std::string::npos) score_of.emplace(merge.substr(0, blank) + merge.substr(blank + 1), -rank);
    rank += 1;
  }
  const std::string unknown = file.at("model").value("unk_token", json()).is_string()
                                  ? file.at("model").at("unk_token").get<std::string>()
                                  : "";
  for (size_t id = 0; id < result.tokens.size(); ++id) {
    const auto found = score_of.find(result.tokens[id]);
    result.scores.push_back(found == score_of.end() ? -rank : found->second);
    if (is_byte_token(result.tokens[id])) result.types[id] = kByte;
    if (!unknown.empty() && result.tokens[id] == unknown) result.types[id] = kUnknown;
  }
  const std::string text = file.value("normalizer", json()).dump() + file.value("pre_tokenizer", json()).dump();
  result.add_space_prefix = text.find("\"Prepend\"") != std::string::npos ||
                            text.find("\"always\"") != std::string::npos || text.find("\"first\"") != std::string::npos;
}

void take_sentencepiece(const SentencePieceModel& model, const fs::path& place, Vocabulary& result) {
  if (model.algorithm != SentencePieceAlgorithm::kBpe)
    refuse_unnamed(place, "the tokenizer is a sentencepiece unigram model");
  if (model.whitespace_as_suffix) refuse_unnamed(place, "the tokenizer puts blanks behind words");
  result.model = "llama";
  result.pre = "default";
  result.scores.assign(result.tokens.size(), -10000.0f);
  for (size_t id = 0; id < std::min(model.pieces.size(), result.tokens.size()); ++id) {
    result.tokens[id] = model.pieces[id].text;
    result.scores[id] = model.pieces[id].score;
    if (result.types[id] == kNormal) result.types[id] = static_cast<Type>(model.pieces[id].kind);
  }
  result.add_space_prefix = model.normalizer.add_dummy_prefix;
  if (!model.normalizer.charsmap.empty())
    result.left_out.push_back("the normalization of tokenizer.model (texts that it changes get other ids)");
  if (model.normalizer.remove_extra_whitespaces)
    result.left_out.push_back("taking blanks away at both ends and in runs (texts with such blanks get other ids)");
}

/// A byte-level BPE: what a text goes through before the merges, and these.
void take_byte_level(const json& file, const fs::path& place, Vocabulary& result) {
  refuse_other_normalizers(file, true, place);
  result.model = "gpt2";
  result.pre = gguf_pre_tokenizer(file, place);
  result.merges = merges_of(file.at("model"));
  result.left_out = gguf_left_out(file);
}

Vocabulary from_json(const json& file, const fs::path& directory, const Tokenizer& tokenizer) {
  const fs::path place = directory / "tokenizer.json";
  const json& model = file.at("model");
  Vocabulary result;
  take_tokens(tokenizer, added_ids(file), result);
  if (fs::exists(directory / "tokenizer.model")) {
    take_sentencepiece(check_sentencepiece_model(read_text_file(directory / "tokenizer.model"),
                                                 (directory / "tokenizer.model").string()),
                       directory / "tokenizer.model", result);
    return result;
  }
  const bool is_bpe = model.value("type", std::string("BPE")) == "BPE" && model.contains("merges");
  if (!is_bpe) refuse_unnamed(place, "the tokenizer is of type " + model.value("type", std::string("?")));
  if (model.value("byte_fallback", json()) == true) {
    take_metaspace(file, place, result);
  } else {
    take_byte_level(file, place, result);
  }
  return result;
}

/// vocab.json and merges.txt; the class of the tokenizer says how it cuts.
Vocabulary from_merges(const fs::path& directory, const Tokenizer& tokenizer) {
  const json file = describe_vocab_and_merges(directory);
  const auto first_added = static_cast<int32_t>(file.at("model").at("vocab").size());
  std::set<int32_t> added;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (id >= first_added || tokenizer.is_special(id)) added.insert(id);
  }
  Vocabulary result;
  take_tokens(tokenizer, added, result);
  take_byte_level(file, directory / "vocab.json", result);
  return result;
}

Vocabulary read_vocabulary(const fs::path& directory, const Tokenizer& tokenizer) {
  if (fs::exists(directory / "tokenizer.json")) {
    JsonLimits limits;
    limits.max_bytes = size_t{256} << 20;
    return from_json(read_json_file(directory / "tokenizer.json", limits), directory, tokenizer);
  }
  if (fs::exists(directory / "vocab.json")) return from_merges(directory, tokenizer);
  Vocabulary result;
  take_tokens(tokenizer, {}, result);
  const fs::path file = directory / "tokenizer.model";
  take_sentencepiece(check_sentencepiece_model(read_text_file(file), file.string()), file, result);
  return result;
}

void fill_up(Vocabulary& result, int64_t vocab_size, const fs::path& place) {
  const auto rows = static_cast<size_t>(vocab_size);
  if (result.tokens.size() > rows) {
    throw UsageError(
        "the tokenizer has " + std::to_string(result.tokens.size()) + " tokens, the embedding " + std::to_string(rows),
        "resize the embedding first", place.string());
  }
  while (result.tokens.size() < rows) {
    result.tokens.push_back("[PAD" + std::to_string(result.tokens.size()) + "]");
    result.types.push_back(kUnused);
    if (!result.scores.empty()) result.scores.push_back(-10000.0f);
  }
}

/// The tokens around a text. llama.cpp puts its BOS and its EOS there, or nothing.
void put_ends(const Tokenizer& tokenizer, const fs::path& place, Metadata& metadata) {
  constexpr std::string_view kProbe = "a";
  const std::vector<int32_t> bare = tokenizer.encode(kProbe, false);
  std::vector<int32_t> with = tokenizer.encode(kProbe, true);
  if (bare.empty()) with.clear();  // has no token for it: what goes where cannot be seen
  const auto text = std::search(with.begin(), with.end(), bare.begin(), bare.end());
  const auto put = [&](const std::string& name, const std::optional<int32_t>& role, const std::vector<int32_t>& ids) {
    if (ids.size() > 1 || (ids.size() == 1 && role.value_or(ids[0]) != ids[0]))
      refuse_unnamed(place, "the tokenizer puts other tokens than " + name + " at an end of a text");
    const std::optional<int32_t> id = ids.empty() ? role : ids[0];
    if (id) metadata.emplace_back("tokenizer.ggml." + name + "_token_id", static_cast<uint32_t>(*id));
    metadata.emplace_back("tokenizer.ggml.add_" + name + "_token", !ids.empty());
  };
  const auto behind = text == with.end() ? text : text + static_cast<int64_t>(bare.size());
  put("bos", tokenizer.bos_id(), {with.begin(), text});
  put("eos", tokenizer.eos_id(), {behind, with.end()});
}

/// Ends beside the tokenizer's EOS. To llama.cpp one is the end of a turn, where that is not EOS, and one that of a
/// message.
void put_other_ends(const Tokenizer& tokenizer, std::vector<int32_t> ends, Metadata& metadata) {
  std::erase_if(ends, [&](int32_t id) { return id == tokenizer.eos_id() || id < 0 || id >= tokenizer.vocab_size(); });
  const std::vector<int32_t> of_turns = turn_end_ids(tokenizer);
  const auto ends_turn = [&](int32_t id) { return std::ranges::count(of_turns, id) > 0; };
  std::ranges::stable_partition(ends, ends_turn);
  std::vector<std::string> keys = {"tokenizer.ggml.eom_token_id"};
  const bool eos_ends_turns =
      tokenizer.roles().chat_templates.contains("default") && (ends.empty() || !ends_turn(ends.front()));
  if (!eos_ends_turns) keys.insert(keys.begin(), "tokenizer.ggml.eot_token_id");
  const size_t keyed = std::min(keys.size(), ends.size());
  for (size_t i = 0; i < keyed; ++i) metadata.emplace_back(keys[i], static_cast<uint32_t>(ends[i]));
  ends.erase(ends.begin(), ends.begin() + static_cast<ptrdiff_t>(keyed));
  if (!ends.empty()) metadata.emplace_back(kGgufOtherEnds, ends);
}

/// The usual template and, under the names that gguf-py makes of theirs, the others, of which each has room for one.
void put_templates(const std::map<std::string, std::string>& templates, Metadata& metadata,
                   std::vector<std::string>& left_out) {
  const auto usual = templates.find("default");
  if (usual != templates.end()) metadata.emplace_back("tokenizer.chat_template", usual->second);
  std::vector<std::string> names;
  for (const auto& [given, text] : templates) {
    if (given == "default") continue;
    std::string name = given;
    std::ranges::replace_if(
        name, [](unsigned char c) { return c >= 0x80 || std::isalnum(c) == 0; }, '_');
    if (std::ranges::count(names, name) > 0) {
      left_out.push_back("the chat template \"" + given + "\" (another is called " + name + " there too)");
      continue;
    }
    metadata.emplace_back("tokenizer.chat_template." + name, text);
    names.push_back(name);
  }
  if (!names.empty()) metadata.emplace_back("tokenizer.chat_templates", names);
}

}  // namespace

GgufVocabulary gguf_vocabulary(const fs::path& directory, int64_t vocab_size, const std::vector<int32_t>& ends) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(directory.string());
  if (!tokenizer) return {};
  Vocabulary result = read_vocabulary(directory, *tokenizer);
  fill_up(result, vocab_size, directory);
  Metadata metadata = {{"tokenizer.ggml.model", result.model}, {"tokenizer.ggml.pre", result.pre}};
  metadata.emplace_back("tokenizer.ggml.tokens", std::move(result.tokens));
  if (!result.scores.empty()) metadata.emplace_back("tokenizer.ggml.scores", std::move(result.scores));
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(result.types));
  if (result.model == "gpt2") metadata.emplace_back("tokenizer.ggml.merges", std::move(result.merges));
  const TokenRoles& roles = tokenizer->roles();
  const auto put = [&](const char* key, const std::optional<int32_t>& id) {
    if (id) metadata.emplace_back(key, static_cast<uint32_t>(*id));
  };
  put_ends(*tokenizer, directory, metadata);
  put_other_ends(*tokenizer, ends, metadata);
  put("tokenizer.ggml.unknown_token_id", roles.unk);
  put("tokenizer.ggml.padding_token_id", roles.pad);
  if (result.add_space_prefix) metadata.emplace_back("tokenizer.ggml.add_space_prefix", *result.add_space_prefix);
  put_templates(roles.chat_templates, metadata, result.left_out);
  return {std::move(metadata), std::move(result.left_out)};
}

}  // namespace nibble
