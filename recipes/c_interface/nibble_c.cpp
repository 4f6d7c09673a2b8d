// The C interface over the C++ one: exceptions become codes, objects stay behind opaque handles.

#include "nibble/nibble_c.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>

#include "nibble/core/base/error.h"
#include "nibble/core/base/version.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/quant/tables.h"
#include "nibble/recipes/models/merge_model.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/train.h"

struct nibble_model {
  explicit nibble_model(int threads) : rank(threads) {}

  nibble::LocalRank rank;
  std::optional<nibble::Decoder> decoder;
  std::unique_ptr<nibble::Tokenizer> tokenizer;

  nibble::StepContext step() { return {.rank = rank.context(), .compute_dtype = nibble::compute_dtype_of("auto")}; }
  const nibble::Tokenizer& words() const {
    if (!tokenizer) throw nibble::InputError("model", "has no tokenizer files", "use token ids");
    return *tokenizer;
  }
};

namespace {

int report(nibble_error* error, int code, const char* message) {
  if (error != nullptr) {
    error->code = code;
    const size_t length = std::min(std::strlen(message), sizeof error->message - 1);
    std::memcpy(error->message, message, length);
    error->message[length] = '\0';
  }
  return code;
}

// Runs `body` and turns what it throws into a code.
template <typename Body>
int guarded(nibble_error* error, const Body& body) noexcept {
  try {
    body();
    return report(error, NIBBLE_OK, "");
  } catch (const nibble::Error& failure) {
    return report(error, failure.exit_code(), failure.what());
  } catch (const std::bad_alloc&) {
    return report(error, NIBBLE_IO, "out of memory; use a 4-bit base or a smaller model");
  } catch (const std::exception& failure) {
    return report(error, NIBBLE_INTERNAL, failure.what());
  } catch (...) {
    return report(error, NIBBLE_INTERNAL, "unknown exception");
  }
}

void need(const void* pointer, const char* name) {
  if (pointer == nullptr) throw nibble::UsageError(std::string(name) + " is NULL");
}

std::string text_or(const char* text, const char* otherwise) { return text != nullptr ? text : otherwise; }

nibble_step step_of(const nibble::StepReport& report) {
  nibble_step step = {};
  step.step = report.step;
  step.total_steps = report.total_steps;
  step.loss = report.loss;
  step.lr = report.lr;
  step.grad_norm = report.grad_norm;
  step.tokens_per_second = report.tokens_per_second;
  step.peak_memory_bytes = report.peak_memory_bytes;
  return step;
}

nibble::Observer observer_of(const nibble_train_callbacks& calls, bool& stop) {
  nibble::Observer observer;
  void* const user = calls.user;
  if (calls.on_step != nullptr) {
    observer.on_step = [&stop, user, call = calls.on_step](const nibble::StepReport& report) {
      const nibble_step step = step_of(report);
      stop = call(&step, user) != 0 || stop;
    };
  }
  if (calls.on_evaluation != nullptr) {
    observer.on_evaluation = [user, call = calls.on_evaluation](const nibble::EvaluationReport& report) {
      call(report.step, report.loss, report.perplexity, user);
    };
  }
  if (calls.on_message != nullptr) {
    observer.on_message = [user, call = calls.on_message](const std::string& line) { call(line.c_str(), user); };
  }
  observer.stop_requested = [&stop] { return stop; };
  return observer;
}

}  // namespace

extern "C" {

const char* nibble_version(void) { return nibble::version().data(); }  // a string literal: ends with a 0

nibble_model* nibble_model_open(const char* model_dir, const char* adapter_dir, const char* quantize, int threads,
                                nibble_error* error) {
  std::unique_ptr<nibble_model> model;
  const int code = guarded(error, [&] {
    need(model_dir, "model_dir");
    model = std::make_unique<nibble_model>(threads);
    nibble::ModelRecipe base;
    base.path = model_dir;
    const std::string type = text_or(quantize, "none");
    base.quantize = nibble::find_quant_type(type);
    if (!base.quantize && type != "none") throw nibble::UsageError("quantize must be none, nf4 or fp4, not " + type);
    const std::string adapter = text_or(adapter_dir, "");
    model->tokenizer = nibble::find_tokenizer(nibble::find_text_source(base.path, adapter, std::nullopt).tokenizer);
    model->decoder.emplace(nibble::open_model(base, adapter, nibble::Train::nothing, model->rank.context()));
  });
  return code == NIBBLE_OK ? model.release() : nullptr;
}

void nibble_model_close(nibble_model* model) { delete model; }

int nibble_encode(const nibble_model* model, const char* text, int add_special, int32_t* ids, size_t capacity,
                  size_t* count, nibble_error* error) {
  return guarded(error, [&] {
    need(model, "model");
    need(text, "text");
    need(count, "count");
    const std::vector<int32_t> found = model->words().encode(text, add_special != 0);
    if (ids != nullptr) std::copy_n(found.begin(), std::min(capacity, found.size()), ids);
    *count = found.size();
  });
}

int nibble_decode(const nibble_model* model, const int32_t* ids, size_t count, char* text, size_t capacity,
                  size_t* length, nibble_error* error) {
  return guarded(error, [&] {
    need(model, "model");
    need(length, "length");
    if (count > 0) need(ids, "ids");
    const std::string found = model->words().decode(std::span(ids, count), true);
    if (text != nullptr && capacity > 0) {
      const size_t copied = std::min(capacity - 1, found.size());
      std::memcpy(text, found.data(), copied);
      text[copied] = '\0';
    }
    *length = found.size();
  });
}

int nibble_generate(nibble_model* model, const int32_t* prompt, size_t prompt_count,
                    const nibble_generate_options* options, nibble_on_token on_token, void* user, int32_t* ids,
                    size_t capacity, size_t* count, nibble_error* error) {
  return guarded(error, [&] {
    need(model, "model");
    need(prompt, "prompt");
    need(count, "count");
    nibble::GenerateOptions wanted;
    if (options != nullptr) {
      wanted.max_new_tokens = options->max_new_tokens;
      wanted.sampling = {
          .temperature = options->temperature, .top_k = options->top_k, .top_p = options->top_p, .seed = options->seed};
    }
    wanted.stop_ids = model->decoder->config().eos_ids;
    const std::vector<int32_t> found =
        nibble::generate(*model->decoder, std::span(prompt, prompt_count), wanted, model->step(),
                         [&](int32_t id) { return on_token == nullptr || on_token(id, user) == 0; });
    if (ids != nullptr) std::copy_n(found.begin(), std::min(capacity, found.size()), ids);
    *count = found.size();
  });
}

int nibble_loss(nibble_model* model, const int32_t* ids, size_t count, double* loss_sum, nibble_error* error) {
  return guarded(error, [&] {
    need(model, "model");
    need(ids, "ids");
    need(loss_sum, "loss_sum");
    nibble::Sample sample;
    sample.ids.assign(ids, ids + count);
    sample.labels = sample.ids;
    if (count < 2) throw nibble::UsageError("a loss needs at least two ids");
    *loss_sum = model->decoder->loss_sum(nibble::make_batch({&sample, 1}, model->rank.context().pool), model->step());
  });
}

int nibble_train(const char* recipe_json, const char* const* overrides, size_t override_count,
                 const nibble_train_callbacks* callbacks, nibble_error* error) {
  return guarded(error, [&] {
    need(recipe_json, "recipe_json");
    if (override_count > 0) need(overrides, "overrides");
    for (size_t i = 0; i < override_count; ++i) need(overrides[i], ("overrides[" + std::to_string(i) + "]").c_str());
    const std::vector<std::string> words(overrides, overrides + override_count);
    const nibble::Recipe recipe = nibble::parse_recipe(recipe_json, "recipe", words);
    nibble::LocalRank rank(static_cast<int>(recipe.train.threads), static_cast<uint64_t>(recipe.train.seed));
    bool stop = false;
    const nibble_train_callbacks none = {};
    nibble::train(recipe, rank.context(), observer_of(callbacks != nullptr ? *callbacks : none, stop));
  });
}

int nibble_merge(const char* adapter_dir, const char* base_dir, const char* out_dir, nibble_error* error) {
  return guarded(error, [&] {
    need(adapter_dir, "adapter_dir");
    need(out_dir, "out_dir");
    nibble::MergeRequest request;
    request.adapter = adapter_dir;
    request.model = text_or(base_dir, "");
    request.out = out_dir;
    nibble::LocalRank rank;
    nibble::merge_model(request, rank.context());
  });
}

}  // extern "C"
