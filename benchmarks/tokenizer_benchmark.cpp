// Megabytes of text encoded in a second, on one core: NIBBLE_TEST_ASSETS=DIR tokenizer_benchmark
// The peer on the same lines: benchmarks/peers/tokenizers_speed.py

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "nibble/core/text/tokenizers/tokenizer.h"

namespace {

std::filesystem::path assets() {
  const char* set = std::getenv("NIBBLE_TEST_ASSETS");
  return set != nullptr ? set : ".";
}

void encode_lines(benchmark::State& state, const std::string& model) {
  const std::filesystem::path text = assets() / "data-wikitext2/test.txt";
  if (!std::filesystem::exists(text) || !std::filesystem::exists(assets() / model)) {
    state.SkipWithError("NIBBLE_TEST_ASSETS has no data-wikitext2 or no such tokenizer");
    return;
  }
  const std::unique_ptr<nibble::Tokenizer> tokenizer = nibble::load_tokenizer(assets() / model);
  std::vector<std::string> lines;
  std::ifstream file(text);
  int64_t bytes = 0;
  for (std::string line; std::getline(file, line); bytes += static_cast<int64_t>(line.size()) + 1)
    lines.push_back(line + "\n");
  for (auto _ : state) {
    size_t tokens = 0;
    for (const std::string& line : lines) tokens += tokenizer->encode(line, false).size();
    benchmark::DoNotOptimize(tokens);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

}  // namespace

BENCHMARK_CAPTURE(encode_lines, gpt2, "tok-gpt2/tokenizer.json")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_lines, tinyllama, "tok-tinyllama-hf/tinyllama_tokenizer.json")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_lines, pythia, "tok-neox-pythia/20B_tokenizer.json")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_lines, qwen2, "tok-qwen2")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_lines, llama2_sentencepiece, "tok-llama2-spm")->Unit(benchmark::kMillisecond);

BENCHMARK_MAIN();
