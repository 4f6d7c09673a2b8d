// Published training runs against the plan: every run that is held out, predicted from constants fitted on others.
//   published_runs docs/published_runs.json      the table of docs/plan.md

#include <cmath>
#include <cstdio>

#include "nibble/benchmarks/known_runs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "published_runs docs/published_runs.json\n");
    return 2;
  }
  try {
    const auto runs = nibble::read_known_runs(argv[1]);
    int within = 0, all = 0;
    std::printf("| group | run | published | predicted | error | constants from |\n|---|---|---|---|---|---|\n");
    for (const auto& one : nibble::predict_held_out(runs)) {
      std::string from;
      for (const std::string& id : one.run->from) from += (from.empty() ? "" : ", ") + id;
      std::printf("| %s | %s | %g %s | %.4g | %+.1f%% | %s |\n", one.run->group.c_str(), one.run->id.c_str(),
                  one.run->measured, one.run->unit.c_str(), one.predicted, 100 * one.error(), from.c_str());
      within += std::abs(one.error()) <= 0.10;
      ++all;
    }
    std::printf("\n%d of %d within 10%%, %zu rows fitted on\n", within, all, runs.size() - static_cast<size_t>(all));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "published_runs: %s\n", error.what());
    return 1;
  }
}
