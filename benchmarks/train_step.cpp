// Training steps end to end on random weights: tokens/s, the model's operations as a share of the peak measured in the
// same process, time by phase, memory at its largest: anonymous and file-backed as sampled, and the kernel's peak of
// both.
//   train_step shape=tinyllama-1.1b mode=qlora tokens=2048          one row
//   train_step table > table.md                                     all rows, each in a process of its own
//   train_step shape=tinyllama-1.1b mode=qlora tokens=2048 replay=16,64 overhead_us=5
// The last records a step's parallel sections on one thread, with the pieces that so many threads get, and says how
// well so many are used (benchmarks/replay.h); steps=4 of each are recorded, and the shortest time of a piece counts.
// Models are made once, as `nibble init` makes them, in the folder models=... (default /tmp/nibble-models).

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "nibble/adapters/attach.h"
#include "nibble/benchmarks/replay.h"
#include "nibble/core/base/isa_levels.h"
#include "nibble/core/base/philox.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/load.h"
#include "nibble/core/train/telemetry/metrics.h"
#include "nibble/core/train/train_step.h"
#include "nibble/quant/load_quantized.h"
#include "peak.h"
#include "random_model.h"

namespace nibble::benchmarks {
namespace {

namespace fs = std::filesystem;

struct Job {
  std::string shape = "tinyllama-1.1b", mode = "qlora";  ///< full, lora, qlora or pretrain
  int64_t tokens = 2048;
  bool checkpointing = false, int8 = false;
  int64_t steps = 4;           ///< after one that warms up
  std::string dtype = "auto";  ///< bf16, f32, or auto: bf16 in the arithmetic that is faster
  std::string models = "/tmp/nibble-models";
  std::vector<int> replay;  ///< workers
  double overhead_us = 5;   ///< of calling them and waiting for the last, each section
};

/// Times between the borders of a step's phases.
class Phases final : public BlockHooks {
 public:
  enum Phase { kForward, kHead, kBackward, kUpdate, kCount };

  explicit Phases(int64_t layers) : last_layer_(layers - 1) {}
  void start() { last_ = seconds(), times_ = {}; }
  void stop() { add(kUpdate); }
  const std::array<double, kCount>& times() const { return times_; }

  void after_forward(int64_t layer) override {
    if (layer == last_layer_) add(kForward);
  }
  void before_backward(int64_t layer) override {
    if (layer == last_layer_) add(kHead);
  }
  void after_backward(int64_t layer) override {
    if (layer <= last_layer_) add(kBackward);  // the head's comes before
  }

 private:
  void add(Phase phase) {
    const double now = seconds();
    times_[phase] += now - last_;
    last_ = now;
  }
  int64_t last_layer_;
  double last_ = 0;
  std::array<double, kCount> times_{};
};

/// Resident memory where it was largest, anonymous and file-backed apart, sampled while it lives.
class MemoryWatch {
 public:
  MemoryWatch() : thread_([this] { watch(); }) {}
  ~MemoryWatch() {
    over_ = true;
    thread_.join();
  }
  int64_t anonymous() const { return anonymous_; }
  int64_t file() const { return file_; }

 private:
  void watch() {
    while (!over_) {
      std::ifstream status("/proc/self/status");
      int64_t anonymous = 0, file = 0;  // KiB
      for (std::string word; status >> word;) {
        if (word == "RssAnon:") status >> anonymous;
        if (word == "RssFile:") status >> file;
      }
      if ((anonymous + file) << 10 > anonymous_ + file_) {
        anonymous_ = anonymous << 10;
        file_ = file << 10;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::atomic<bool> over_ = false;
  std::atomic<int64_t> anonymous_ = 0, file_ = 0;
  std::thread thread_;
};

constexpr int64_t kRank = 16, kExpertRank = 4;

/// gpt-oss is published in MXFP4.
std::string stored_dtype(const Job& job) {
  if (job.mode != "qlora") return "bf16";
  return shape_of(job.shape).model_type == "gpt_oss" ? "mxfp4" : "nf4";
}

Decoder make_model(const Job& job, RankContext& rank) {
  Decoder model =
      job.mode == "pretrain"
          ? random_decoder(parse_decoder_config(shape_of(job.shape).config_json(), job.shape), 1, rank)
          : load_decoder(random_model(job.shape, stored_dtype(job), job.models), rank, load_quantized(rank));
  if (job.mode == "full" || job.mode == "pretrain") {
    make_trainable(model, rank);
  } else {
    AdapterOptions options;
    options.r = kRank;
    options.lora_alpha = 32;
    if (const DecoderConfig& config = model.config(); config.experts) {  // attention, and experts with a smaller rank
      const ExpertNames& names = config.names.block.experts;
      options.target_modules.names = {"q_proj", "k_proj", "v_proj", "o_proj"};
      options.target_parameters = {names.peft_gate_up, names.peft_down};
      for (const std::string& tensor : options.target_parameters) {
        options.rank_pattern.emplace_back(tensor, kExpertRank);
        options.alpha_pattern.emplace_back(tensor, 2 * kExpertRank);
      }
    } else {
      options.target_modules.pattern = "all-linear";
    }
    attach_adapter(model, options, rank);
  }
  if (job.int8) model.set_int8(rank.pool);
  model.set_recompute(job.checkpointing ? Recompute::block : Recompute::none);
  return model;
}

/// Operations of one step that count as the model's: every weight twice forward, twice for the input's gradient and, if
/// it is trained, twice for its own; causal attention 2 products forward and 4 backward. Of experts those that a token
/// chooses. Nothing for recomputing.
double model_flops(Decoder& model, const Job& job) {
  const ModelShape& shape = shape_of(job.shape);
  const bool everything = job.mode == "full" || job.mode == "pretrain";
  const DecoderConfig& config = model.config();
  double weights = 0, adapters = 0;
  model.visit_linears([&](Linear& linear) {
    const auto out = static_cast<double>(linear.out_features()), in = static_cast<double>(linear.in_features());
    const bool expert = expert_part(config, linear.name()).has_value();
    const double chosen = expert ? static_cast<double>(config.experts->routing.k) / config.experts->experts : 1;
    weights += chosen * out * in;
    if (linear.adapter()) adapters += chosen * (expert ? kExpertRank : kRank) * (out + in);
  });
  const auto tokens = static_cast<double>(job.tokens);
  const double attention =
      6 * tokens * (tokens + 1) * static_cast<double>(config.heads * config.head_size * shape.layers);
  return tokens * (weights * (everything ? 6 : 4) + adapters * 6) + attention;
}

Batch random_batch(const Job& job, MemoryPool& pool) {
  PhiloxStream random(1, 0, 0);
  Sample sample;
  for (int64_t i = 0; i < job.tokens; ++i) {
    sample.ids.push_back(
        static_cast<int32_t>(random.next_below(static_cast<uint64_t>(shape_of(job.shape).vocabulary))));
  }
  sample.labels = sample.ids;
  return make_batch({&sample, 1}, pool);
}

/// Bytes that a step moves at least: the stored weights forward and backward, of every trained value and its gradient
/// and state what AdamW reads and writes, and what is kept for the backward pass, written and read.
double step_bytes(Decoder& model, const Optimizer& optimizer, double kept) {
  double stored = 0;
  for (const NamedTensor& tensor : state_dict(model)) stored += static_cast<double>(tensor.value.bytes());
  return 2 * stored + 8.0 * sizeof(float) * static_cast<double>(optimizer.size()) + 2 * kept;
}

struct Result {
  double seconds = 1e30, peak = 0, flops = 0, bandwidth = 0, bytes = 0;
  std::array<double, Phases::kCount> phases{};
  int64_t anonymous = 0, file = 0, pool = 0, kernel = 0;
};

/// A model that is trained on one batch, in the arithmetic that the job names.
class Training {
 public:
  explicit Training(const Job& job)
      : model_(make_model(job, context())),
        optimizer_(trainable_parameters(model_), {}, context().pool),
        batch_(random_batch(job, context().pool)) {
    const bool bf16 = job.dtype == "bf16" || (job.dtype == "auto" && has_bf16(isa()));
    if (job.dtype == "auto") ops::set_bf16_products(faster_bf16_products());
    pairs_ = bf16 && ops::bf16_products() == ops::Bf16Products::bf16;
    options_.lr = 1e-4;
    options_.max_grad_norm = 1;
    options_.gradient_sum = job.mode == "full" || job.mode == "pretrain" ? GradientSum::running : GradientSum::tree;
    options_.compute_dtype = bf16 ? DType::bf16 : DType::f32;
  }

  /// Seconds of the next step.
  double step() {
    ++options_.step;
    const double begin = seconds();
    const StepResult step = train_step(model_, {&batch_, 1}, optimizer_, options_, context());
    const double time = seconds() - begin;
    std::fprintf(stderr, "step %lld: loss %.4f, %.3f s\n", static_cast<long long>(options_.step), step.loss, time);
    return time;
  }

  RankContext& context() { return rank_.context(); }
  Decoder& model() { return model_; }
  const Optimizer& optimizer() const { return optimizer_; }
  /// Whether products multiply pairs of bf16.
  bool pairs() const { return pairs_; }

 private:
  LocalRank rank_;
  Decoder model_;
  Optimizer optimizer_;
  Batch batch_;
  StepOptions options_;
  bool pairs_ = false;
};

/// The fastest step counts: other work on the machine only ever adds time.
Result measure(const Job& job) {
  Training training(job);
  MemoryPool& pool = training.context().pool;
  Phases phases(shape_of(job.shape).layers);
  training.model().set_hooks(&phases);
  Result result;
  const size_t held = pool.in_use();
  result.bandwidth = ReadBandwidth().measure(4);
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;  // VmHWM begins again: the steps' own, not that of making a model
  const MemoryWatch memory;
  for (int64_t step = 0; step <= job.steps; ++step) {
    result.peak = std::max(result.peak, measure_peak(training.pairs() ? DType::bf16 : DType::f32, step == 0 ? 12 : 4));
    phases.start();
    const double time = training.step();
    phases.stop();
    if (step == 0 || time > result.seconds) continue;
    result.seconds = time;
    result.phases = phases.times();
  }
  result.flops = model_flops(training.model(), job);
  result.anonymous = memory.anonymous();
  result.file = memory.file();
  result.kernel = peak_memory_bytes();
  result.pool = static_cast<int64_t>(pool.peak());
  result.bytes = step_bytes(training.model(), training.optimizer(), static_cast<double>(pool.peak() - held));
  return result;
}

/// The sections of a step with the pieces that `workers` threads get.
std::vector<ParallelSection> record_step(Training& training, int workers, int64_t steps) {
  std::vector<ParallelSection> sections;
  training.context().threads = workers;
  for (int64_t step = 0; step < steps; ++step) {
    SectionRecorder recorder(workers);
    training.step();
    std::vector<ParallelSection> again = recorder.finish();
    if (step == 0) {
      sections = std::move(again);
    } else {
      keep_shortest(sections, again);
    }
  }
  return sections;
}

void print_replay(const Job& job) {
  Training training(job);
  training.step();
  set_threads(1);  // of libraries that have threads of their own
  std::printf("%s, %s, %lld tokens; %.1f us to start and end a section\n\n", job.shape.c_str(), job.mode.c_str(),
              static_cast<long long>(job.tokens), job.overhead_us);
  std::string costs, header =
                         "| workers | step | efficiency | work | of it gaps | start and end | sections | pieces |\n"
                         "|---|---|---|---|---|---|---|---|\n";
  for (const int workers : job.replay) {
    const std::vector<ParallelSection> sections = record_step(training, workers, job.steps);
    const Replay result = replay(sections, workers, 1e-6 * job.overhead_us);
    size_t pieces = 0;
    for (const ParallelSection& section : sections) pieces += section.pieces.size();
    std::printf("%s| %d | %.4f s | %.1f%% | %.3f s | %.4f s | %.4f s | %zu | %zu |\n", header.c_str(), workers,
                result.makespan, 100 * result.efficiency(), result.work, result.gaps, result.overhead,
                sections.size() - 1, pieces);
    std::fflush(stdout);
    header.clear();
    if (workers > 1) costs += "\n" + std::to_string(workers) + " workers:\n\n" + costs_table(sections, result, 16);
  }
  std::printf("%s", costs.c_str());
}

constexpr const char* kHeader =
    "| shape | mode | tokens | recompute | tokens/s | GFLOP/s | of peak | s/step | forward | head | backward | update "
    "| "
    "anonymous | file | pool | floor: operations | floor: bytes | peak resident |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

void print_row(const Job& job, const Result& r) {
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  const auto share = [&](Phases::Phase phase) { return 100 * r.phases[phase] / r.seconds; };
  std::printf(
      "| %s | %s | %lld | %s | %.1f | %.0f | %.1f%% | %.3f | %.0f%% | %.0f%% | %.0f%% | %.0f%% | %.2f GiB | %.2f GiB | "
      "%.2f GiB | %.3f s | %.3f s | %.2f GiB |\n",
      job.shape.c_str(), job.mode.c_str(), static_cast<long long>(job.tokens), job.checkpointing ? "block" : "none",
      static_cast<double>(job.tokens) / r.seconds, r.flops / r.seconds * 1e-9, 100 * r.flops / r.seconds / r.peak,
      r.seconds, share(Phases::kForward), share(Phases::kHead), share(Phases::kBackward), share(Phases::kUpdate),
      gib(r.anonymous), gib(r.file), gib(r.pool), r.flops / r.peak, r.bytes / r.bandwidth, gib(r.kernel));
  std::fflush(stdout);
}

/// The rows of docs/performance.md. Each in a process of its own, so that its memory is its own.
int print_table(const std::string& self, const std::string& models) {
  constexpr const char* kRows[] = {
      "shape=tinyllama-1.1b mode=qlora tokens=2048",
      "shape=tinyllama-1.1b mode=qlora tokens=2048 checkpointing=1",
      "shape=tinyllama-1.1b mode=qlora tokens=512",
      "shape=tinyllama-1.1b mode=lora tokens=512",
      "shape=smollm2-135m mode=lora tokens=2048",
      "shape=smollm2-135m mode=qlora tokens=2048",
      "shape=smollm2-135m mode=full tokens=2048",
      "shape=smollm2-135m mode=pretrain tokens=2048",
      "shape=qwen2.5-0.5b mode=full tokens=2048",
      "shape=llama2-7b mode=qlora tokens=512 checkpointing=1 steps=1",
      "shape=llama2-13b mode=qlora tokens=512 checkpointing=1 steps=1",
      "shape=llama-33b mode=qlora tokens=512 checkpointing=1 steps=1",
  };
  std::printf("%s", kHeader);
  for (const char* row : kRows) {
    std::fflush(stdout);
    const std::string command = "'" + self + "' row " + row + " models='" + models + "'";
    if (std::system(command.c_str()) != 0) return 1;
  }
  return 0;
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> values;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) values.push_back(std::max(1, std::stoi(word)));
  return values;
}

int run(int argc, char** argv) {
  Job job;
  bool table = false, row = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    if (key == "table")
      table = true;
    else if (key == "row")
      row = true;
    else if (key == "shape")
      job.shape = value;
    else if (key == "mode")
      job.mode = value;
    else if (key == "tokens")
      job.tokens = std::stoll(value);
    else if (key == "checkpointing")
      job.checkpointing = value != "0";
    else if (key == "int8")
      job.int8 = value != "0";
    else if (key == "steps")
      job.steps = std::stoll(value);
    else if (key == "dtype")
      job.dtype = value;
    else if (key == "models")
      job.models = value;
    else if (key == "overhead_us")
      job.overhead_us = std::stod(value);
    else if (key == "replay")
      job.replay = numbers(value);
    else
      throw UsageError("argument " + argument + " is not known", "see the top of benchmarks/train_step.cpp");
  }
  constexpr std::string_view kModes[] = {"full", "lora", "qlora", "pretrain"};
  if (std::find(std::begin(kModes), std::end(kModes), job.mode) == std::end(kModes)) {
    throw UsageError("no mode is named " + job.mode, "use full, lora, qlora or pretrain");
  }
  if (job.dtype != "auto" && job.dtype != "bf16" && job.dtype != "f32") {
    throw UsageError("no dtype is named " + job.dtype, "use auto, bf16 or f32");
  }
  if (!job.replay.empty()) return print_replay(job), 0;
  if (table) return print_table(fs::canonical("/proc/self/exe").string(), job.models);
  if (!row) std::printf("%s", kHeader);
  print_row(job, measure(job));
  return 0;
}

}  // namespace
}  // namespace nibble::benchmarks

int main(int argc, char** argv) {
  try {
    return nibble::benchmarks::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_step: %s\n", error.what());
    return 1;
  }
}
