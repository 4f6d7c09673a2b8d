#pragma once
// The keys of a GGUF file that are its architecture's: "llama.block_count" by "block_count".

#include <optional>
#include <string>
#include <vector>

#include "nibble/core/io/gguf/gguf.h"

namespace nibble {

/// The shortest one that becomes this float.
double shortest_decimal(float value);

class GgufKeys {
 public:
  static constexpr const char* kElsewhere = "get the model in Hugging Face's form";

  GgufKeys(const GgufFile& file, std::string prefix, MemoryPool& pool)
      : file_(file), prefix_(std::move(prefix)), pool_(pool) {}

  std::optional<int64_t> integer(const std::string& key) const { return file_.integer(prefix_ + key); }
  /// A float of the file as the shortest decimal that becomes it.
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const { return file_.text(prefix_ + key); }
  bool flag(const std::string& key, bool absent) const;
  bool says(const std::string& key) const { return file_.metadata().contains(prefix_ + key); }
  bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }
  /// The elements of a tensor of one row; none where it is absent.
  std::vector<float> values(const std::string& tensor) const;

  bool has_experts() const { return integer("expert_count").value_or(0) > 0; }
  /// Layers of the model: without those behind the last one that predict tokens after the next.
  int64_t layers() const;
  /// What a key says of each layer: a list of integers or flags, or one for all; empty where it is absent.
  std::vector<int64_t> by_layer(const std::string& key) const;
  /// The largest of them; InputError where it is absent, or not positive.
  int64_t needed_most(const std::string& key) const;

  /// InputError where it is absent, or not positive.
  int64_t needed(const std::string& key) const;
  double needed_number(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& reason) const;

 private:
  const GgufFile& file_;
  std::string prefix_;
  MemoryPool& pool_;
};

}  // namespace nibble
