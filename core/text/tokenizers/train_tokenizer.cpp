#include "nibble/core/text/tokenizers/train_tokenizer.h"

#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

// The trainer drops longer sentences, so long lines go in as several, cut at a blank where there is one.
constexpr size_t kMaxSentence = 4096;

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::function<bool(std::string&)>& next) : next_(next) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sentencepiece::util::Status status() const override { return {}; }
  bool any() const { return any_; }

  void Next() override {
    do {
      while (position_ >= text_.size()) {
        position_ = 0;
        text_.clear();
        if (!next_(text_)) {
          done_ = true;
          return;
        }
        require_utf8(text_, "text");
      }
      take_sentence();
    } while (sentence_.empty());
    any_ = true;
  }

 private:
  void take_sentence() {
    size_t end = std::min(text_.find('\n', position_), text_.size());
    size_t behind = end + 1;
    if (end - position_ > kMaxSentence) {
      const size_t blank = text_.rfind(' ', position_ + kMaxSentence);
      end = blank != std::string::npos && blank > position_ ? blank : position_ + kMaxSentence;
      while ((static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) --end;
      behind = end;
    }
    sentence_.assign(text_, position_, end - position_);
    std::erase(sentence_, '\0');
    std::erase(sentence_, '\r');
    position_ = behind;
  }

  const std::function<bool(std::string&)>& next_;
  std::string text_, sentence_;
  size_t position_ = 0;
  bool done_ = false, any_ = false;
};

}  // namespace

std::string train_sentencepiece(const std::function<bool(std::string&)>& next, const TokenizerTraining& training) {
  constexpr int32_t kReserved = 3 + 256;
  if (training.vocab_size <= kReserved)
    throw UsageError(
        "a vocabulary of " + std::to_string(training.vocab_size) + " cannot hold <unk>, <s>, </s> and 256 bytes",
        "ask for 300 or more");
  const std::unordered_map<std::string, std::string> settings = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(training.vocab_size)},
      {"hard_vocab_limit", "false"},
      {"byte_fallback", "true"},
      {"split_digits", training.split_digits ? "true" : "false"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "true"},
      {"allow_whitespace_only_pieces", "true"},
      {"character_coverage", "0.99995"},
      {"max_sentence_length", std::to_string(4 * kMaxSentence)},
      {"num_threads", "1"},   // its result must not depend on the machine
      {"minloglevel", "3"}};  // it writes to stderr otherwise
  Sentences sentences(next);
  if (sentences.done()) throw InputError("corpus", "has no text to train a tokenizer on");
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &sentences, &model);
  if (!status.ok()) {
    const std::string reason = status.error_message();
    // "Vocabulary size is smaller than required_chars. 300 vs 342. Increase ..."
    const size_t needed =
        reason.find("required_chars. ") == std::string::npos ? std::string::npos : reason.find(" vs ");
    if (needed != std::string::npos) {
      throw UsageError(
          "a vocabulary of " + std::to_string(training.vocab_size) + " cannot hold the characters of the text",
          "ask for " + std::to_string(std::atoi(reason.c_str() + needed + 4)) + " or more");
    }
    throw UsageError(
        "no tokenizer of " + std::to_string(training.vocab_size) + " pieces can be trained: sentencepiece: " + reason,
        "ask for a larger vocabulary or give more text");
  }
  return model;
}

void write_tokenizer(const std::string& model, const std::filesystem::path& directory, Replace replace) {
  const nlohmann::json roles = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  nlohmann::json config = roles;
  config.update({{"tokenizer_class", "LlamaTokenizer"},
                 {"legacy", true},
                 {"add_bos_token", true},
                 {"add_eos_token", false},
                 {"clean_up_tokenization_spaces", false}});
  AtomicDirectory out(directory, replace);
  write_file_atomically(out.path() / "tokenizer.model", model);
  write_json_file(out.path() / "tokenizer_config.json", config);
  write_json_file(out.path() / "special_tokens_map.json", roles);
  out.list_files();
  out.commit();
}

}  // namespace nibble
