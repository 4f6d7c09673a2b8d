#include "nibble/recipes/models/arithmetic.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/isa_levels.h"
#include "nibble/core/base/rank_context.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/ops/cpu/peak_flops.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kDtype = "compute_dtype";
constexpr const char* kProducts = "bf16_products";

// The "model" section of the resolved recipe that the run would go on from; null where none can be read, which is for
// Run::open to judge.
json begun_with(const OutputRecipe& output) {
  if (output.resume == "never") return nullptr;
  const fs::path place = fs::path(output.resume == "auto" ? output.dir : output.resume) / "recipe.json";
  try {
    if (!fs::is_regular_file(place)) return nullptr;
    const json root = read_json_file(place);
    return root.is_object() ? root.value("model", json()) : json();
  } catch (const Error&) {
    return nullptr;
  }
}

std::optional<ops::Bf16Products> products_of(const json& name) {
  if (name == "bf16") return ops::Bf16Products::bf16;
  if (name == "f32") return ops::Bf16Products::f32;
  return std::nullopt;
}

const char* name_of(ops::Bf16Products products) { return products == ops::Bf16Products::f32 ? "f32" : "bf16"; }

// What the first rank decides for all: the model's dtype and products, by the names that a recipe has for them.
json decide(const ModelRecipe& given, const OutputRecipe& output) {
  const json begun = begun_with(output);
  ModelRecipe model = given;
  if (!given.names_dtype && begun.is_object()) {
    const json dtype = begun.value(kDtype, json());
    if (dtype == "f32") model.compute_dtype = ComputeDtype::f32;
    if (dtype == "bf16") model.compute_dtype = ComputeDtype::bf16;
    // A run that names none began before there was a choice, or with a dtype that was named.
    model.bf16_products = products_of(begun.value(kProducts, json("bf16")));
  } else if (given.int8() && begun.is_object()) {
    model.bf16_products = products_of(begun.value(kProducts, json("bf16")));
  }
  return {{kDtype, model.dtype() == DType::f32 ? "f32" : "bf16"}, {kProducts, name_of(model.products())}};
}

}  // namespace

std::string arithmetic_reason() {
  if (!has_bf16(isa()) || faster_bf16_products() == ops::Bf16Products::bf16) return "";
  return formatted(
      "products of bf16 numbers in f32, which this CPU does %.1f times as fast as by its bf16 instructions",
      1 / bf16_to_f32_rate());
}

void use_arithmetic(const ModelRecipe& model) { ops::set_bf16_products(model.products()); }

Recipe with_arithmetic(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  const ModelRecipe& given = recipe.model;
  Recipe chosen = recipe;
  if (!given.bf16_products && (given.int8() || !given.names_dtype)) {
    const bool first = rank.comm.rank() == 0;
    const json output =
        json::parse(rank.comm.broadcast_text("choose arithmetic", first ? decide(given, recipe.output).dump() : "", 0));
    ModelRecipe& model = chosen.model;
    if (!model.int8()) model.compute_dtype = output[kDtype] == "f32" ? ComputeDtype::f32 : ComputeDtype::bf16;
    if (model.dtype() == DType::bf16) model.bf16_products = products_of(output[kProducts]);
    if (first && model.bf16_products == ops::Bf16Products::f32) {
      const std::string reason = arithmetic_reason();
      observer.message(reason.empty() ? "products of bf16 numbers in f32, as the run began" : reason);
    }
  }
  use_arithmetic(chosen.model);
  return chosen;
}

}  // namespace nibble
