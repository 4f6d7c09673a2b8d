// Fine-tunes a LoRA on texts that a program has in memory, tells a callback after every step, and stops when it says
// so.
//   finetune_from_memory MODEL_DIR ADAPTER_DIR [STEPS]

#include <nibble/nibble.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

struct Pair {
  std::string question, answer;
};

const std::vector<Pair> kPairs = {
    {"Once upon a time, there was a cat.", " The cat liked to sleep in the sun."},
    {"The dog saw a ball.", " He ran and ran and took it home."},
    {"It was a cold day.", " Tom put on his hat and his warm coat."},
};

// Loss on answers only: labels of the question's tokens are ignored.
nibble::Sample encode(const nibble::Tokenizer& tokenizer, const Pair& pair, uint64_t index) {
  nibble::Sample sample;
  sample.ids = tokenizer.encode(pair.question);
  const size_t prompt = sample.ids.size();
  for (const int32_t id : tokenizer.encode(pair.answer, false)) sample.ids.push_back(id);
  if (tokenizer.eos_id()) sample.ids.push_back(*tokenizer.eos_id());
  sample.labels = sample.ids;
  for (size_t t = 0; t < prompt; ++t) sample.labels[t] = nibble::kIgnoreLabel;
  sample.index = index;
  return sample;
}

/// False asks to stop.
using OnStep = std::function<bool(int64_t step, const nibble::StepResult& result)>;

void finetune(const std::string& model_dir, const std::string& adapter_dir, int64_t steps, const OnStep& on_step) {
  nibble::LocalRank rank;
  nibble::ModelRecipe base;
  base.path = model_dir;
  base.quantize = nibble::QuantType::nf4;  // QLoRA; leave it out for LoRA
  base.skip_modules = {{"lm_head"}};
  nibble::Decoder model = nibble::open_base(base, rank.context());

  nibble::AdapterOptions options = nibble::default_adapter_options();
  options.r = 8;
  options.lora_alpha = 16;
  const nibble::AttachedAdapter adapter = nibble::attach_adapter(model, options, rank.context());

  const auto tokenizer = nibble::load_tokenizer(model_dir);
  std::vector<nibble::Sample> samples;
  for (const Pair& pair : kPairs) samples.push_back(encode(*tokenizer, pair, samples.size()));
  const std::vector<nibble::Batch> microbatches = {nibble::make_batch(samples, rank.context().pool)};

  nibble::Optimizer optimizer(nibble::trainable_parameters(model), {}, rank.context().pool);
  nibble::Schedule schedule;
  schedule.kind = nibble::ScheduleKind::cosine;
  schedule.lr = 5e-3;
  schedule.total_steps = steps;

  nibble::StepOptions step;
  step.compute_dtype = nibble::compute_dtype_of("auto");
  step.max_grad_norm = 1;
  for (step.step = 1; step.step <= steps; ++step.step) {
    step.lr = schedule.lr_at(step.step - 1);
    if (!on_step(step.step, nibble::train_step(model, microbatches, optimizer, step, rank.context()))) break;
  }
  nibble::save_adapter(model, adapter, adapter_dir, nibble::Replace::own);  // loads in PEFT
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: finetune_from_memory MODEL_DIR ADAPTER_DIR [STEPS]\n"), 2;
  const int64_t steps = argc > 3 ? std::atoll(argv[3]) : 40;
  try {
    finetune(argv[1], argv[2], steps, [](int64_t step, const nibble::StepResult& result) {
      std::printf("step %lld loss %.4f\n", static_cast<long long>(step), result.loss);
      return result.loss > 0.5;  // good enough: stop
    });
  } catch (const nibble::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
