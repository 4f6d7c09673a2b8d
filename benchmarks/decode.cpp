// Tokens one after another, as `nibble generate` makes them, on random weights: tokens/s, and the bytes of weights that
// a token reads as a share of the memory bandwidth measured in the same process.
//   decode shape=llama2-7b dtype=nf4 tokens=32

#include <algorithm>
#include <cstdio>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/generate.h"
#include "nibble/core/models/load.h"
#include "nibble/quant/load_quantized.h"
#include "peak.h"
#include "random_model.h"

namespace nibble::benchmarks {
namespace {

struct Job {
  std::string shape = "llama2-7b", dtype = "nf4", models = "/tmp/nibble-models";
  int64_t tokens = 32;
};

Job parse(int argc, char** argv) {
  Job job;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string key = argument.substr(0, equals), value = argument.substr(std::min(equals + 1, argument.size()));
    if (key == "shape")
      job.shape = value;
    else if (key == "dtype")
      job.dtype = value;
    else if (key == "tokens")
      job.tokens = std::max(2LL, std::stoll(value));
    else if (key == "models")
      job.models = value;
    else
      throw UsageError("argument " + argument + " is not known", "see the top of benchmarks/decode.cpp");
  }
  return job;
}

/// Of weights that a token reads: all but the rows of the embedding it does not look up.
double bytes_of_token(Decoder& model, const ModelShape& shape) {
  double bytes = 0;
  for (const NamedTensor& tensor : state_dict(model)) bytes += static_cast<double>(tensor.value.bytes());
  if (!shape.tied) bytes -= 2.0 * static_cast<double>(shape.vocabulary * shape.width);
  return bytes;
}

void run(const Job& job) {
  LocalRank rank;
  RankContext& context = rank.context();
  Decoder model = load_decoder(random_model(job.shape, job.dtype, job.models), context, load_quantized(context));
  const StepContext step{.rank = context, .compute_dtype = isa() == Isa::avx512_bf16 ? DType::bf16 : DType::f32};
  double bandwidth = measure_read_bandwidth(8), last = 0, fastest = 1e30;
  std::vector<double> times;
  GenerateOptions options;
  options.max_new_tokens = job.tokens;
  const std::vector<int32_t> prompt = {1, 2, 3};
  generate(model, prompt, options, step, [&](int32_t) {  // the first call comes after the prompt
    const double now = seconds();
    if (last > 0) times.push_back(now - last);
    last = now;
    return true;
  });
  bandwidth = std::max(bandwidth, measure_read_bandwidth(8));
  std::sort(times.begin(), times.end());
  fastest = times.front();
  const double bytes = bytes_of_token(model, shape_of(job.shape)), median = times[times.size() / 2];
  std::printf(
      "| shape | weights | tokens/s, median | fastest | GB of weights a token | GB/s | read bandwidth | share |\n"
      "|---|---|---|---|---|---|---|---|\n"
      "| %s | %s | %.2f | %.2f | %.2f | %.1f | %.1f | %.0f%% |\n",
      job.shape.c_str(), job.dtype.c_str(), 1 / median, 1 / fastest, bytes * 1e-9, bytes / fastest * 1e-9,
      bandwidth * 1e-9, 100 * bytes / fastest / bandwidth);
}

}  // namespace
}  // namespace nibble::benchmarks

int main(int argc, char** argv) {
  try {
    nibble::benchmarks::run(nibble::benchmarks::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode: %s\n", error.what());
    return 1;
  }
}
