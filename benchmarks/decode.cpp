// Tokens one after another, as `nibble generate` makes them, on random weights: tokens/s, and the bytes of weights that
// a token reads as a share of the memory bandwidth measured between tokens.
//   decode shape=llama2-7b dtype=nf4 tokens=32
// Many sequences together, as rollouts are drawn, beside the prompts of as many in one pass: tokens/s of both.
//   decode shape=tinyllama-1.1b dtype=nf4 tokens=32 sequences=32 prompt=64

#include <algorithm>
#include <cstdio>

#include "nibble/core/base/isa_levels.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/generation/answers.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/core/models/load.h"
#include "nibble/quant/load_quantized.h"
#include "peak.h"
#include "random_model.h"

namespace nibble::benchmarks {
namespace {

struct Job {
  std::string shape = "llama2-7b", dtype = "nf4", models = "/tmp/nibble-models";
  int64_t tokens = 32, sequences = 0, prompt = 64;
  double temperature = 1;
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
    else if (key == "sequences")
      job.sequences = std::stoll(value);
    else if (key == "prompt")
      job.prompt = std::max(1LL, std::stoll(value));
    else if (key == "temperature")
      job.temperature = std::stod(value);
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Answers to as many prompts, and between them passes over all prompts at once.
void run_together(const Job& job, Decoder& model, const StepContext& step) {
  const int64_t rounds = 3, vocabulary = model.config().vocab_size;
  std::vector<AnsweredPrompt> prompts;
  std::vector<Sample> texts;
  for (int64_t s = 0; s < job.sequences; ++s) {
    AnsweredPrompt& prompt = prompts.emplace_back();
    for (int64_t t = 0; t < job.prompt; ++t)
      prompt.ids.push_back(static_cast<int32_t>((s * 977 + t * 7919) % vocabulary));
    prompt.sequences = {0};
    texts.emplace_back().ids = prompt.ids;
  }
  AnswerOptions options;
  options.sampling.temperature = static_cast<float>(job.temperature);
  options.max_new_tokens = job.tokens;
  options.together = job.sequences;
  options.prompt_tokens = job.sequences * job.prompt;
  std::vector<double> of_prompts, of_answers, of_model;
  for (int64_t round = 0; round < rounds; ++round) {
    KvCache cache = model.make_cache(step, job.sequences);
    const Batch all = make_batch(texts, step.pool());
    double begin = seconds();
    model.next_logits(all, step, cache);
    of_prompts.push_back(seconds() - begin);
    double in_model = 0;
    const NextLogits next = [&](const Batch& batch, KvCache& held) {
      const double from = seconds();
      Tensor logits = model.next_logits(batch, step, held);
      in_model = seconds() - from;
      return logits;
    };
    int64_t pass = 0;
    const auto between = [&] {  // before each pass; the first has the prompts
      if (pass++ > 1) {
        of_answers.push_back(seconds() - begin);
        of_model.push_back(in_model);
      }
      begin = seconds();
      return true;
    };
    sample_answers(
        model, next, prompts, options, step, [](const Answer&) {}, between);
  }
  const auto per_second = [&](int64_t tokens, double of) { return static_cast<double>(tokens) / of; };
  const double prompt = per_second(job.sequences * job.prompt, *std::ranges::min_element(of_prompts));
  const double answer = per_second(job.sequences, median(of_answers));
  std::printf(
      "| shape | weights | sequences | prompts, tokens/s | answers, tokens/s, median | fastest | without sampling | "
      "share of prompts, median |\n|---|---|---|---|---|---|---|---|\n"
      "| %s | %s | %lld | %.1f | %.1f | %.1f | %.1f | %.0f%% |\n",
      job.shape.c_str(), job.dtype.c_str(), static_cast<long long>(job.sequences), prompt, answer,
      per_second(job.sequences, *std::ranges::min_element(of_answers)), per_second(job.sequences, median(of_model)),
      100 * answer / prompt);
}

void run(const Job& job) {
  LocalRank rank;
  RankContext& context = rank.context();
  Decoder model = load_decoder(random_model(job.shape, job.dtype, job.models), context, load_quantized(context));
  const StepContext step{.rank = context, .compute_dtype = has_bf16(isa()) ? DType::bf16 : DType::f32};
  if (job.sequences > 0) return run_together(job, model, step);
  const double bytes = bytes_of_token(model, shape_of(job.shape));
  const ReadBandwidth bandwidth;
  // What the memory gives may double or halve from one second to the next, as the host moves the cores about: every
  // token is held against what was read right before and right after it.
  double begin = 0, before = 0;
  std::vector<double> speeds, limits, shares;
  GenerateOptions options;
  options.max_new_tokens = job.tokens;
  const std::vector<int32_t> prompt = {1, 2, 3};
  generate(model, prompt, options, step, [&](int32_t) {  // the first call comes after the prompt
    const double end = seconds(), after = bandwidth.measure(2);
    if (begin > 0) {
      speeds.push_back(1 / (end - begin));
      limits.push_back(std::max(before, after));
      shares.push_back(bytes * speeds.back() / limits.back());
    }
    before = after;
    begin = seconds();
    return true;
  });
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  const auto [lowest, highest] = std::minmax_element(limits.begin(), limits.end());
  std::printf(
      "| shape | weights | tokens/s, median | fastest | GB of weights a token | GB/s | read bandwidth | share, median "
      "|\n"
      "|---|---|---|---|---|---|---|---|\n"
      "| %s | %s | %.2f | %.2f | %.2f | %.1f | %.1f-%.1f | %.0f%% |\n",
      job.shape.c_str(), job.dtype.c_str(), median(speeds), fastest, bytes * 1e-9, bytes * median(speeds) * 1e-9,
      *lowest * 1e-9, *highest * 1e-9, 100 * median(shares));
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
