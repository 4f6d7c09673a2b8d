#include "nibble/core/comm/same_everywhere.h"

#include <algorithm>
#include <vector>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr size_t kNamedRanks = 4;

/// The text that most ranks have; of equally many, the one that the lowest rank has.
const std::string& usual(const std::vector<std::string>& texts) {
  const auto more = [&](const std::string& a, const std::string& b) {
    return std::ranges::count(texts, a) < std::ranges::count(texts, b);
  };
  return *std::ranges::max_element(texts, more);
}

std::string name_ranks(const std::vector<int>& odd, const Communicator& ranks) {
  std::string names;
  for (size_t i = 0; i < std::min(odd.size(), kNamedRanks); ++i) {
    names += (i == 0 ? "" : ", ") + ranks.describe(odd[i]);
  }
  return odd.size() > kNamedRanks ? names + " and " + std::to_string(odd.size() - kNamedRanks) + " more" : names;
}

}  // namespace

void require_same_everywhere(Communicator& ranks, const std::map<std::string, std::string>& things) {
  if (ranks.size() == 1) return;
  // All at once; one by one only to name what differs.
  std::string all;
  for (const auto& [name, text] : things) all.append(name).append(1, '\0').append(text).append(1, '\0');
  const bool differs = ranks.broadcast_text("compare settings", all, 0) != all;
  if (ranks.all_reduce_sum("compare settings", differs ? 1.0 : 0.0) == 0) return;
  for (const auto& [name, text] : things) {
    std::vector<std::string> texts;
    for (int r = 0; r < ranks.size(); ++r) texts.push_back(ranks.broadcast_text("compare " + name, text, r));
    const std::string& expected = usual(texts);
    std::vector<int> odd;
    for (int r = 0; r < ranks.size(); ++r) {
      if (texts[static_cast<size_t>(r)] != expected) odd.push_back(r);
    }
    if (odd.empty()) continue;
    throw UsageError((odd.size() == 1 ? "has" : "have") + (" another " + name) + " than the other ranks",
                     "give every rank the same files", name_ranks(odd, ranks));
  }
}

}  // namespace nibble
