#pragma once
// A small LoRA run of the program in a directory of its own, its output in files.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

struct SmallRun {
  TemporaryDirectory directory;
  pid_t child = -1;

  std::filesystem::path out() const { return directory / "out"; }
  std::string recipe() const { return (directory / "recipe.json").string(); }
  std::string errors() const { return read_bytes(directory / "stderr"); }
  std::string output() const { return read_bytes(directory / "stdout"); }
  std::string adapter() const { return read_bytes(out() / "adapter" / "adapter_model.safetensors"); }

  /// `batch_key`: of `train`, which is 2.
  void write_recipe(const std::filesystem::path& base, int steps, const std::string& batch_key) const {
    using nlohmann::json;
    std::string lines;
    for (int i = 0; i < 12; ++i) {
      json ids = json::array();
      for (int t = 0; t < 24; ++t) ids.push_back(3 + (7 * i + t * t) % 500);
      lines += json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    write_bytes(directory / "data.jsonl", lines);
    const json recipe = {
        {"model", {{"path", base.string()}}},
        {"adapter", {{"r", 4}, {"lora_dropout", 0.1}}},
        {"data", {{"train", (directory / "data.jsonl").string()}, {"format", "tokens"}, {"pack", false}}},
        {"train", {{"steps", steps}, {batch_key, 2}, {"save_every", 20}, {"threads", 1}}},
        {"optimizer", {{"lr", 1e-3}, {"schedule", "constant"}}},
        {"output", {{"dir", out().string()}}}};
    write_bytes(directory / "recipe.json", recipe.dump());
  }

  /// The program with these words.
  pid_t start(std::vector<std::string> words, bool close_output = false) {
    words.insert(words.begin(), kProgram);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string errors_path = (directory / "stderr").string(), output_path = (directory / "stdout").string();
    child = fork();
    if (child != 0) return child;
    dup2(open(output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 1);
    dup2(open(errors_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), 2);
    if (close_output) {
      close(1);
      close(2);
    }
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  /// Exit code, or minus the signal that ended it.
  static int wait(pid_t process) {
    int status = 0;
    waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int wait() const { return wait(child); }

  /// Of metrics.jsonl: one a step.
  int64_t lines() const {
    const std::string text = read_bytes(out() / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  /// Until the run has done `count` steps, or has ended.
  void wait_for_lines(int64_t count) const {
    siginfo_t ended = {};
    while (lines() < count && waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
};

}  // namespace nibble::test
