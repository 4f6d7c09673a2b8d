#pragma once
// The keys of a GGUF file that are its architecture's: "llama.block_count" by "block_count".

#include <optional>
#include <string>
#include <vector>

#include "nibble/core/io/gguf/gguf.h"

namespace nibble {

class GgufKeys {
 public:
  static constexpr const char* kElsewhere = "get the model in Hugging Face's form";

  GgufKeys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::optional<int64_t> integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  std::optional<double> number(const std::string& key) const { return file_.number(prefix_ + key); }
  std::optional<std::string> text(const std::string& key) const { return file_.text(prefix_ + key); }
  bool flag(const std::string& key, bool absent) const;
  bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }
  /// The elements of a tensor of one row; none where it is absent.
  std::vector<float> values(const std::string& tensor, MemoryPool& pool) const;

  /// InputError where it is absent, or not positive.
  int64_t needed(const std::string& key) const;
  double needed_number(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& reason) const;

 private:
  const GgufFile& file_;
  std::string prefix_;
};

}  // namespace nibble
