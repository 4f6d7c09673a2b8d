#pragma once
// A model with an adapter, made and trained by the program itself.

#include "nibble/tests/cli/small_model.h"

namespace nibble::test {

/// SmallModel, and beside it `wide`, a model of 80,000 weights, with an adapter for it in run/adapter.
class TrainedModel : public SmallModel {
 protected:
  void SetUp() override {
    SmallModel::SetUp();
    nlohmann::json config = nlohmann::json::parse(read_bytes(root_ / "config.json"));
    config["hidden_size"] = 64;
    config["intermediate_size"] = 128;
    write_bytes(root_ / "wide.json", config.dump());
    ASSERT_EQ(run("init --config wide.json --out wide").code, 0);
    for (const auto& file : std::filesystem::directory_iterator(root_ / "tokenizer")) {
      if (!exists(root_ / "wide" / file.path().filename())) {
        copy(file.path(), root_ / "wide" / file.path().filename());
      }
    }
    write_bytes(root_ / "d.jsonl", "{\"text\": \"What is it? It is this, or that.\"}\n");
    write_bytes(root_ / "r.json",
                R"({"model": {"path": "wide"}, "adapter": {"r": 2}, "data": {"train": "d.jsonl"},
                                            "train": {"steps": 1, "threads": 1}, "output": {"dir": "run"}})");
    const CommandOutput trained = run("train r.json");
    ASSERT_EQ(trained.code, 0) << trained.text;
  }
};

}  // namespace nibble::test
