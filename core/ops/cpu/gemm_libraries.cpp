#include "nibble/core/ops/cpu/gemm_libraries.h"

#include <cstdlib>
#include <string>

#include "nibble/core/base/error.h"

namespace nibble::ops::cpu {

namespace {

GemmEngine asked_for() {
  const char* wanted = std::getenv("NIBBLE_GEMM");
  if (wanted == nullptr || *wanted == '\0') return isa() >= Isa::avx2 ? GemmEngine::own : GemmEngine::openblas;
  std::string known(gemm_engine_name(GemmEngine::own));
  if (wanted == known) return GemmEngine::own;
  for (GemmEngine engine : gemm_libraries()) {
    if (gemm_engine_name(engine) == wanted) return engine;
    known += " or " + std::string(gemm_engine_name(engine));
  }
  throw UsageError("NIBBLE_GEMM=" + std::string(wanted) + " is not known to this build", "use " + known);
}

}  // namespace

std::string_view gemm_engine_name(GemmEngine engine) {
  constexpr std::string_view kNames[] = {"own", "openblas", "onednn"};
  return kNames[static_cast<int>(engine)];
}

std::vector<GemmEngine> gemm_libraries() {
#if NIBBLE_WITH_ONEDNN
  return {GemmEngine::openblas, GemmEngine::onednn};
#else
  return {GemmEngine::openblas};
#endif
}

GemmEngine gemm_engine() {
  static const GemmEngine engine = asked_for();
  return engine;
}

bool gemm_by_library(const PackedProduct& product, GemmEngine engine) {
#if NIBBLE_WITH_ONEDNN
  if (engine == GemmEngine::onednn) return gemm_onednn(product);
#endif
  return engine == GemmEngine::openblas && gemm_openblas(product);
}

}  // namespace nibble::ops::cpu
