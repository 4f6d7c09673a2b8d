#pragma once
// Whole runs on several ranks (threads of this process): a small recipe of every mode, and what it leaves.

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

namespace fs = std::filesystem;
using nlohmann::json;

/// A layout as its tests are named.
struct NamedLayout {
  const char* name;
  int ranks;
  json parallel;  ///< the section of the recipe
};

/// What a run leaves, as far as the layout must not change it.
struct Outcome {
  std::vector<double> losses, norms, evaluations;
  std::vector<std::string> output;  ///< the samples' texts, in order
  std::string weights;              ///< bytes of the adapter's or the model's safetensors file
};

/// Evaluations and what the model says: at the start, at every evaluation and at the end.
inline void expect_same_evaluations(const Outcome& got, const Outcome& want, double tolerance) {
  EXPECT_EQ(got.output, want.output);
  ASSERT_EQ(got.evaluations.size(), want.evaluations.size());
  for (size_t i = 0; i < want.evaluations.size(); ++i) {
    EXPECT_NEAR(got.evaluations[i], want.evaluations[i], tolerance) << "evaluation " << i + 1;
  }
}

inline Outcome outcome_of(const fs::path& out) {
  Outcome outcome;
  std::ifstream file(out / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const json value = json::parse(line);
    if (value["split"] == "eval") outcome.evaluations.push_back(value["loss"]);
    if (value["split"] != "train") continue;
    outcome.losses.push_back(value["loss"]);
    outcome.norms.push_back(value["grad_norm"]);
  }
  std::ifstream samples(out / "samples.jsonl");
  for (std::string line; std::getline(samples, line);) outcome.output.push_back(json::parse(line)["text"]);
  const fs::path adapter = out / "adapter" / "adapter_model.safetensors";
  outcome.weights = read_bytes(fs::exists(adapter) ? adapter : out / "model" / "model.safetensors");
  return outcome;
}

/// A small real model, real text, and everything that could depend on the layout: dropout, noise, packing, shuffling,
/// accumulation, warm-up, clipping, weight decay, evaluation.
class Layouts : public testing::Test {
 protected:
  void SetUp() override {
    base_ = test::data_path("stories-llama");
    const fs::path text = test::data_path("stories");
    std::ifstream file(text / "stories.txt");
    std::string lines, all((std::istreambuf_iterator<char>(file)), {});
    for (size_t at = 0; at + 200 < all.size() && at < 40 * 200; at += 200) {
      lines += json{{"text", all.substr(at, 200)}}.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
    }
    write_bytes(directory_ / "text.jsonl", lines);
  }

  json recipe(const std::string& mode) const {
    json result = {{"model", {{"path", base_.string()}, {"compute_dtype", "f32"}}},
                   {"data",
                    {{"train", (directory_ / "text.jsonl").string()},
                     {"format", "text"},
                     {"eval_fraction", 0.1},
                     {"max_length", 48}}},
                   {"train",
                    {{"steps", 3},
                     {"accumulate", 4},
                     {"eval_every", 2},
                     {"samples", 2},
                     {"seed", 11},
                     {"max_grad_norm", 0.5},
                     {"neftune_noise_alpha", 5},
                     {"gradient_sum", "tree"},
                     {"gradient_checkpointing", "none"}}},
                   {"optimizer", {{"lr", 2e-3}, {"weight_decay", 0.01}}}};
    if (mode == "lora" || mode.starts_with("qlora")) {
      result["adapter"] = {{"r", 4}, {"lora_alpha", 8}, {"lora_dropout", 0.1}};
      result["optimizer"]["loraplus_lr_ratio"] = 2;
    }
    if (mode.starts_with("qlora")) result["model"]["quantize"] = "nf4";
    if (mode == "qlora_int8") result["model"]["compute_dtype"] = "int8";
    if (mode == "pretrain") {
      result["model"] = {
          {"init", (base_ / "config.json").string()}, {"tokenizer", base_.string()}, {"compute_dtype", "f32"}};
    }
    return result;
  }

  Outcome run(json wanted, int ranks, const std::string& name, int64_t stop_after = -1, int delay_us = 0) {
    const fs::path out = directory_ / name;
    wanted["output"]["dir"] = out.string();
    const Recipe read = parse_recipe(wanted.dump(), "test");
    run_on_threads(ranks, [&](Communicator& comm) {
      comm.settings().max_delay_us = delay_us;
      MemoryPool pool;
      RankContext rank{comm, pool, 1, static_cast<uint64_t>(read.train.seed)};
      set_threads(1);
      int64_t last = 0;
      Observer observer;
      observer.on_step = [&](const StepReport& report) { last = report.step; };
      // Only one rank hears the signal.
      observer.stop_requested = [&] { return last == stop_after && comm.rank() == comm.size() - 1; };
      try {
        trains_(read, rank, observer);
      } catch (const Interrupted&) {
      }
    });
    return stop_after < 0 ? outcome_of(out) : Outcome();
  }

  TemporaryDirectory directory_;
  fs::path base_;
  std::function<void(const Recipe&, RankContext&, const Observer&)> trains_ = train;  ///< what run() runs
};

/// Bytes that every rank together sent, by operation.
inline std::map<std::string, int64_t> bytes_sent(const json& wanted, const fs::path& out, int ranks) {
  std::map<std::string, int64_t> sent;
  std::mutex mutex;
  json copy = wanted;
  copy["output"]["dir"] = out.string();
  const Recipe read = parse_recipe(copy.dump(), "test");
  run_on_threads(ranks, [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 11};
    set_threads(1);
    train(read, rank, {});
    const std::lock_guard lock(mutex);
    for (const auto& [name, traffic] : comm.settings().traffic) sent[name] += traffic.sent;
  });
  return sent;
}

}  // namespace nibble::test
