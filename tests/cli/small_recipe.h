#pragma once
// The program as a user runs it, and a recipe for it.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "nibble/tests/assets.h"
#include "nibble/tests/command_output.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

/// Runs `nibble WORDS`; standard output, or with " 2>&1" in the words both streams.
inline CommandOutput output_of_nibble(const std::string& words) {
  return output_of(std::string("OMP_NUM_THREADS=1 ") + kProgram + " " + words);
}

/// A recipe for the small model on a few sentences.
struct SmallRecipe {
  TemporaryDirectory directory;
  std::filesystem::path model;

  explicit SmallRecipe(const std::filesystem::path& base) : model(base) {
    std::string lines;
    for (int i = 0; i < 12; ++i) {
      lines +=
          nlohmann::json{{"prompt", "The dog"}, {"completion", " ran home " + std::to_string(i) + " times."}}.dump() +
          "\n";
    }
    write_bytes(directory / "d.jsonl", lines);
    const nlohmann::json recipe = {
        {"model", {{"path", base.string()}}},
        {"adapter", {{"r", 4}}},
        {"data", {{"train", (directory / "d.jsonl").string()}, {"max_length", 64}, {"eval_fraction", 0.25}}},
        {"train", {{"steps", 4}, {"samples", 2}, {"eval_every", 2}, {"threads", 1}}},
        {"output", {{"dir", (directory / "run").string()}}}};
    write_bytes(recipe_file(), recipe.dump());
  }
  std::filesystem::path recipe_file() const { return directory / "r.json"; }
  std::filesystem::path run() const { return directory / "run"; }
};

}  // namespace nibble::test
