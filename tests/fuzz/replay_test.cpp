// Every seed and a few thousand changed ones through every reader: the short form of run.sh, without clang.
//   NIBBLE_FUZZ_RUNS=1000000 [NIBBLE_FUZZ_SEED=2] [NIBBLE_FUZZ_CORPUS=build/fuzz/corpus] test_fuzz
//   [--gtest_filter=*gguf]
// is the long one: changed blindly, but many times as fast as with a fuzzer that watches coverage. The same command
// makes the same inputs, so whatever it meets it meets again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "nibble/tests/assets.h"
#include "nibble/tests/fuzz/targets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::fuzz {
namespace {

namespace fs = std::filesystem;
using Content = std::vector<uint8_t>;

const char* setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::vector<Content> seeds_of(std::string_view target) {
  std::vector<fs::path> files;
  std::error_code ignored;  // there is no corpus of a target that was never fuzzed
  for (const fs::path& folder :
       {fs::path(kSourceDir) / "tests/fuzz/seeds", fs::path(setting("NIBBLE_FUZZ_CORPUS", "/nowhere"))}) {
    for (const auto& entry : fs::directory_iterator(folder / target, ignored)) files.push_back(entry.path());
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
  Mutator(const std::vector<Content>& seeds, uint64_t seed) : seeds_(seeds), random_(seed) {}

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
  std::mt19937_64 random_;
};

class Reader : public testing::TestWithParam<Target> {};

TEST_P(Reader, AcceptsOrRefusesSeedsAndChangedSeeds) {
  const std::vector<Content> seeds = seeds_of(GetParam().name);
  ASSERT_FALSE(seeds.empty());
  for (const Content& seed : seeds) GetParam().run(seed);
  Mutator mutator(seeds, std::strtoull(setting("NIBBLE_FUZZ_SEED", "20240607"), nullptr, 10));
  const int64_t runs = std::atoll(setting("NIBBLE_FUZZ_RUNS", "400"));
  for (int64_t run = 0; run < runs; ++run) GetParam().run(mutator.next());
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Reader, testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace nibble::fuzz
