#include "nibble/core/text/tokenizers/gguf_tokenizer.h"

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/protobuf.h"
#include "nibble/core/text/tokenizers/gguf_pre_tokenizers.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_tokenizer.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

using Json = nlohmann::json;

// llama.cpp's token types, which are sentencepiece's.
enum Type : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

class GgufVocabulary {
 public:
  explicit GgufVocabulary(const GgufFile& file) : file_(file) {
    if (!file.texts("tokenizer.ggml.tokens")) fail("tokens", "is missing");
    tokens = *file.texts("tokenizer.ggml.tokens");
    for (const std::string& token : tokens) require_utf8(token, file.path() + ": tokenizer.ggml.tokens");
    types = numbers<int32_t>("token_type");
    if (types.empty()) types.assign(tokens.size(), kNormal);
  }

  std::vector<std::string> tokens;
  std::vector<int32_t> types;

  /// A list as long as that of the tokens; empty when absent.
  template <typename Number>
  std::vector<Number> numbers(const std::string& key) const {
    const auto found = file_.metadata().find("tokenizer.ggml." + key);
    if (found == file_.metadata().end()) return {};
    const auto* list = std::get_if<std::vector<Number>>(&found->second);
    if (!list) fail(key, "is no list of numbers");
    if (list->size() != tokens.size())
      fail(key, "has " + std::to_string(list->size()) + " entries for " + std::to_string(tokens.size()) + " tokens");
    return *list;
  }

  std::optional<int32_t> id(const std::string& role) const { return file_.token_id(role); }

  bool flag(const std::string& key, bool absent) const {
    const auto found = file_.metadata().find("tokenizer.ggml." + key);
    if (found == file_.metadata().end()) return absent;
    const bool* value = std::get_if<bool>(&found->second);
    if (!value) fail(key, "is no boolean");
    return *value;
  }

  const GgufFile& file() const { return file_; }

  [[noreturn]] void fail(const std::string& key, const std::string& reason, const std::string& remedy = "") const {
    throw InputError(file_.path() + ": tokenizer.ggml." + key, reason, remedy);
  }

 private:
  const GgufFile& file_;
};

// sentencepiece_model.proto: pieces (1) with text, score and type; trainer (2) and normalizer (3).
std::string sentencepiece_file(const GgufVocabulary& vocabulary) {
  const std::vector<float> scores = vocabulary.numbers<float>("scores");
  if (scores.empty()) vocabulary.fail("scores", "is missing");
  ProtoWriter model, trainer, normalizer;
  bool has_bytes = false;
  for (size_t id = 0; id < scores.size(); ++id) {
    ProtoWriter piece;
    piece.text(1, vocabulary.tokens[id]);
    piece.real(2, scores[id]);
    piece.integer(3, static_cast<uint64_t>(vocabulary.types[id]));
    model.text(1, piece.bytes);
    has_bytes = has_bytes || vocabulary.types[id] == kByte;
  }
  trainer.integer(3, 2);  // BPE
  trainer.integer(35, has_bytes);
  const auto role = [&](const char* key, uint32_t id_field, uint32_t text_field) {
    const std::optional<int32_t> id = vocabulary.id(key);
    trainer.integer(id_field, id ? static_cast<uint64_t>(*id) : ~uint64_t{0});
    if (id) trainer.text(text_field, vocabulary.tokens[static_cast<size_t>(*id)]);
  };
  role("unknown", 40, 45);
  role("bos", 41, 46);
  role("eos", 42, 47);
  role("padding", 43, 48);
  normalizer.text(1, "identity");
  normalizer.integer(3, vocabulary.flag("add_space_prefix", true));
  normalizer.integer(4, 0);  // blanks stay as many as they are
  normalizer.integer(5, 1);
  model.text(2, trainer.bytes);
  model.text(3, normalizer.bytes);
  return model.bytes;
}

const GgufPreTokenizer& pre_tokenizer_of(const GgufVocabulary& vocabulary) {
  const std::string name = vocabulary.file().text("tokenizer.ggml.pre").value_or("gpt-2");
  if (const GgufPreTokenizer* found = find_gguf_pre_tokenizer(name)) return *found;
  vocabulary.fail("pre", "is " + name + ", a pre-tokenizer that is not known",
                  "give a tokenizer of the model in Hugging Face's form (model.tokenizer)");
}

// BOS in front of a text and EOS behind it, where the file says so.
void put_ends(const GgufVocabulary& vocabulary, bool begins, Json& result) {
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto put = [&](const std::string& role, bool absent) {
    const std::optional<int32_t> id = vocabulary.id(role);
    if (!id || !vocabulary.flag("add_" + role + "_token", absent)) return;
    const std::string& text = vocabulary.tokens[static_cast<size_t>(*id)];
    for (Json* list : {&single, &pair}) list->push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    tokens[text] = {{"id", text}, {"ids", Json::array({*id})}, {"tokens", Json::array({text})}};
  };
  put("bos", begins);
  single.push_back(sequence("A", 0));
  pair.push_back(sequence("A", 0));
  pair.push_back(sequence("B", 1));
  put("eos", false);
  if (tokens.empty()) return;
  result["post_processor"] = {
      {"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

std::string byte_level_file(const GgufVocabulary& vocabulary) {
  const GgufPreTokenizer& pre = pre_tokenizer_of(vocabulary);
  const std::vector<std::string>* merges = vocabulary.file().texts("tokenizer.ggml.merges");
  if (!merges) vocabulary.fail("merges", "is missing");
  for (const std::string& merge : *merges) require_utf8(merge, vocabulary.file().path() + ": tokenizer.ggml.merges");
  Json tokens = Json::object(), added = Json::array(), steps = Json::array();
  for (const std::string& step : pre.steps) steps.push_back(pre_tokenizer_json(step));
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string& text = vocabulary.tokens[id];
    const int32_t type = vocabulary.types[id];
    if (type != kUnused && !tokens.emplace(text, id).second) vocabulary.fail("tokens", "has " + text + " twice");
    if (type != kControl && type != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type == kControl}});
  }
  Json result = {{"version", "1.0"},
                 {"truncation", nullptr},
                 {"padding", nullptr},
                 {"added_tokens", added},
                 {"normalizer", pre.composes ? Json::object({{"type", "NFC"}}) : Json()},
                 {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
                 {"post_processor", nullptr},
                 {"decoder", pre_tokenizer_json("gpt2")},
                 {"model",
                  {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", pre.ignore_merges},
                   {"vocab", tokens},
                   {"merges", *merges}}}};
  put_ends(vocabulary, pre.begins, result);
  return result.dump(1) + "\n";
}

// By name: tokenizer.chat_template is the "default" one, tokenizer.chat_template.NAME another.
std::map<std::string, std::string> chat_templates_of(const GgufFile& file) {
  const std::string one = "tokenizer.chat_template", named = one + ".";
  std::map<std::string, std::string> templates;
  for (const auto& [key, value] : file.metadata()) {
    if (key != one && !key.starts_with(named)) continue;
    const std::string text = *file.text(key);
    require_utf8(text, file.path() + ": " + key);
    templates[key == one ? "default" : key.substr(named.size())] = text;
  }
  return templates;
}

std::string config_file(const GgufVocabulary& vocabulary, bool sentencepiece) {
  Json result = {{"tokenizer_class", sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false}};
  if (sentencepiece) {
    result["legacy"] = true;
    result["add_bos_token"] = vocabulary.flag("add_bos_token", true);
    result["add_eos_token"] = vocabulary.flag("add_eos_token", false);
  }
  for (const auto& [role, name] :
       {std::pair{"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}}) {
    if (const auto id = vocabulary.id(role)) result[name] = vocabulary.tokens[static_cast<size_t>(*id)];
  }
  const std::map<std::string, std::string> templates = chat_templates_of(vocabulary.file());
  if (templates.size() == 1 && templates.contains("default")) {
    result["chat_template"] = templates.at("default");
  } else {
    for (const auto& [name, text] : templates) result["chat_template"].push_back({{"name", name}, {"template", text}});
  }
  return result.dump(1) + "\n";
}

}  // namespace

std::map<std::string, std::string> gguf_tokenizer_files(const GgufFile& file) {
  const std::string kind = file.text("tokenizer.ggml.model").value_or("none");
  if (kind == "none" || kind == "no_vocab") return {};
  const GgufVocabulary vocabulary(file);
  if (kind != "llama" && kind != "gpt2")
    vocabulary.fail("model", "is " + kind + ", a kind of tokenizer that is not known", "known are llama and gpt2");
  const bool sentencepiece = kind == "llama";
  std::map<std::string, std::string> files;
  files["tokenizer_config.json"] = config_file(vocabulary, sentencepiece);
  files[sentencepiece ? "tokenizer.model" : "tokenizer.json"] =
      sentencepiece ? sentencepiece_file(vocabulary) : byte_level_file(vocabulary);
  return files;
}

std::unique_ptr<Tokenizer> open_gguf_tokenizer(const std::filesystem::path& path) {
  const GgufFile file(path.string());
  std::map<std::string, std::string> files = gguf_tokenizer_files(file);
  if (files.empty()) throw InputError(path.string(), "has no tokenizer");
  const auto model = files.find("tokenizer.model");
  auto tokenizer = model != files.end() ? open_sentencepiece(model->second, path.string())
                                        : open_tokenizer_json(Json::parse(files.at("tokenizer.json")), path.string());
  const GgufVocabulary vocabulary(file);
  TokenRoles roles;
  roles.bos = vocabulary.id("bos");
  roles.eos = vocabulary.id("eos");
  roles.unk = vocabulary.id("unknown");
  roles.pad = vocabulary.id("padding");
  if (roles.bos) roles.special_tokens["bos_token"] = vocabulary.tokens[static_cast<size_t>(*roles.bos)];
  if (roles.eos) roles.special_tokens["eos_token"] = vocabulary.tokens[static_cast<size_t>(*roles.eos)];
  roles.chat_templates = chat_templates_of(file);
  tokenizer->set_roles(std::move(roles));
  return tokenizer;
}

}  // namespace nibble
