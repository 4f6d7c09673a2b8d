// Every seed and a few thousand changed ones through every reader: the short form of run.sh, without clang.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "nibble/tests/fuzz/targets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::fuzz {
namespace {

namespace fs = std::filesystem;
using Content = std::vector<uint8_t>;

std::vector<Content> seeds_of(std::string_view target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(NIBBLE_SOURCE_DIR) / "tests/fuzz/seeds" / target)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Content> seeds;
  for (const fs::path& file : files) {
    const std::string bytes = test::read_bytes(file);
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  return seeds;
}

/// Changes bytes as fuzzers do.
class Mutator {
 public:
  explicit Mutator(const std::vector<Content>& seeds) : seeds_(seeds) {}

  Content next() {
    Content content = seeds_[below(seeds_.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) change(content);
    return content;
  }

 private:
  size_t below(size_t count) { return count == 0 ? 0 : static_cast<size_t>(random_() % count); }

  void change(Content& content) {
    static constexpr std::string_view kTokens[] = {
        "-1", "1e400", "18446744073709551615", "null", "[", "{", "\"", "\xff", "0.5", ",", "\\ud800"};
    const size_t at = below(content.size() + 1);
    const auto place = content.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (at < content.size()) content[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        if (at < content.size()) content[at] = static_cast<uint8_t>(below(2) ? 0xff : 0);
        break;
      case 2:
        content.erase(place,
                      content.begin() + static_cast<std::ptrdiff_t>(std::min(content.size(), at + 1 + below(8))));
        break;
      case 3: {
        const std::string_view token = kTokens[below(std::size(kTokens))];
        content.insert(place, token.begin(), token.end());
        break;
      }
      case 4:
        content.resize(at);
        break;
      default: {
        const Content& other = seeds_[below(seeds_.size())];
        const size_t from = below(other.size()), count = below(other.size() - from + 1);
        content.insert(place, other.begin() + static_cast<std::ptrdiff_t>(from),
                       other.begin() + static_cast<std::ptrdiff_t>(from + count));
      }
    }
  }

  const std::vector<Content>& seeds_;
  std::mt19937_64 random_{20240607};
};

class Reader : public testing::TestWithParam<Target> {};

TEST_P(Reader, AcceptsOrRefusesSeedsAndChangedSeeds) {
  const std::vector<Content> seeds = seeds_of(GetParam().name);
  ASSERT_FALSE(seeds.empty());
  for (const Content& seed : seeds) GetParam().run(seed);
  Mutator mutator(seeds);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  int runs = 0;
  for (; runs < 3000 && std::chrono::steady_clock::now() < end; ++runs) GetParam().run(mutator.next());
  RecordProperty("runs", runs);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Reader, testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace nibble::fuzz
