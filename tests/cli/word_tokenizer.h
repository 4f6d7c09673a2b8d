#pragma once
// A tokenizer for tests that count tokens: every word is one.

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace nibble::test {

/// The tokenizer.json of a tokenizer of the words w0 to w299, some of which are marks instead.
inline std::string word_tokenizer(const std::map<int, std::string>& marks) {
  nlohmann::json tokenizer = {{"normalizer", nullptr},
                              {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                              {"post_processor", nullptr},
                              {"decoder", nullptr},
                              {"model", {{"type", "WordLevel"}, {"unk_token", "w0"}}}};
  for (int id = 0; id < 300; ++id) {
    tokenizer["model"]["vocab"][marks.contains(id) ? marks.at(id) : "w" + std::to_string(id)] = id;
  }
  for (const auto& [id, mark] : marks) {
    tokenizer["added_tokens"].push_back({{"id", id},
                                         {"content", mark},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}});
  }
  return tokenizer.dump();
}

}  // namespace nibble::test
