#pragma once
// A model of a few thousand weights with a tokenizer, made by the program itself, in a Hugging Face cache of its own.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "nibble/tests/assets.h"
#include "nibble/tests/command_output.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

class SmallModel : public ::testing::Test {
 protected:
  using CommandOutput = test::CommandOutput;

  /// The model is me/small.
  void SetUp() override {
    const std::filesystem::path model = snapshot("models--me--small");
    const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                   {"model_type", "llama"},
                                   {"hidden_size", 16},
                                   {"intermediate_size", 32},
                                   {"num_hidden_layers", 1},
                                   {"num_attention_heads", 2},
                                   {"num_key_value_heads", 2},
                                   {"vocab_size", 300},
                                   {"rms_norm_eps", 1e-5},
                                   {"hidden_act", "silu"}};
    write_bytes(root_ / "config.json", config.dump());
    write_bytes(root_ / "words.txt", "What is it? It is this, or that. Who is she? She is here. 1 2 3 4 5 6 7 8 9 0");
    ASSERT_EQ(run("init --config config.json --out " + model.string()).code, 0);
    ASSERT_EQ(run("tokenizer train --data words.txt --vocab-size 300 --out tokenizer").code, 0);
    for (const auto& file : std::filesystem::directory_iterator(root_ / "tokenizer")) {
      if (!exists(model / file.path().filename())) copy(file.path(), model / file.path().filename());
    }
  }
  /// The snapshot that refs/main of `repository` names, empty.
  std::filesystem::path snapshot(const std::string& repository) {
    std::filesystem::path result = root_ / "hub" / repository / "snapshots/abc";
    create_directories(result);
    create_directories(root_ / "hub" / repository / "refs");
    write_bytes(root_ / "hub" / repository / "refs/main", "abc");
    return result;
  }
  /// Both streams of `nibble WORDS`, run in root_.
  CommandOutput run(const std::string& words) {
    return output_of("cd " + root_.path().string() + " && HF_HOME=" + root_.path().string() + " OMP_NUM_THREADS=1 " +
                     kProgram + " " + words + " 2>&1");
  }

  TemporaryDirectory root_;
};

}  // namespace nibble::test
