#include "nibble/benchmarks/replay.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <queue>

#include "nibble/core/base/error.h"

extern "C" const char __executable_start;  // the linker's

namespace nibble::benchmarks {

namespace {

// When each stage of a PieceProgress was reached.
using Reached = std::map<const void*, std::map<int64_t, double>>;

double reached_at(const Reached& reached, const void* progress, int64_t stage) {
  const auto found = reached.find(progress);
  NIBBLE_CHECK(found != reached.end(), "a piece waits for none before it");
  const auto at = found->second.lower_bound(stage);
  NIBBLE_CHECK(at != found->second.end(), "a piece waits for a stage that none before it reaches");
  return at->second;
}

Replay::Part replay_section(const ParallelSection& section, int workers) {
  Replay::Part part;
  std::priority_queue<double, std::vector<double>, std::greater<>> free;
  for (int i = 0; i < workers; ++i) free.push(0);
  Reached reached;
  size_t step = 0;
  for (size_t piece = 0; piece < section.pieces.size(); ++piece) {
    double now = free.top();
    free.pop();
    for (; step < section.steps.size() && section.steps[step].piece == static_cast<int64_t>(piece); ++step) {
      const ParallelSection::Step& of = section.steps[step];
      now += of.seconds;
      part.work += of.seconds;
      if (of.waits) {
        const double ready = std::max(now, reached_at(reached, of.progress, of.stage));
        part.waiting += ready - now;
        now = ready;
      } else {
        reached[of.progress].emplace(of.stage, now);
      }
    }
    now += section.pieces[piece];
    part.work += section.pieces[piece];
    part.makespan = std::max(part.makespan, now);
    free.push(now);
  }
  part.idle = workers * part.makespan - part.work - part.waiting;
  return part;
}

// Demangled names of the functions of this program that call pieces, by address.
std::map<uintptr_t, std::string> read_symbols() {
  std::map<uintptr_t, std::string> symbols;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  FILE* const lines = popen(("nm -C '" + program + "' 2>/dev/null").c_str(), "r");
  if (lines == nullptr) return symbols;
  uintptr_t start = 0;
  for (char line[1 << 14]; std::fgets(line, sizeof line, lines) != nullptr;) {
    char* name = nullptr;
    const uintptr_t address = std::strtoull(line, &name, 16);
    if (std::strstr(name, " __executable_start") != nullptr) start = address;
    if (std::strstr(name, "parallel_for<") != nullptr) symbols.emplace(address, name);
  }
  pclose(lines);
  std::map<uintptr_t, std::string> moved;
  for (auto& [address, name] : symbols) {
    moved.emplace(address - start + reinterpret_cast<uintptr_t>(&__executable_start), std::move(name));
  }
  return moved;
}

// "adamw" of "... parallel_for<nibble::ops::N_AVX3::adamw(nibble::Tensor&, ...)::{lambda..."
std::string function_name(std::string symbol) {
  for (const std::string_view hidden : {"(anonymous namespace)::", "nibble::"}) {
    for (size_t at; (at = symbol.find(hidden)) != std::string::npos;) symbol.erase(at, hidden.size());
  }
  const size_t begin = symbol.find("parallel_for<") + std::strlen("parallel_for<");
  const size_t end = symbol.find_first_of("(<", begin), scope = symbol.rfind("::", end);
  const size_t first = scope != std::string::npos && scope > begin ? scope + 2 : begin;
  return symbol.substr(first, end - first);
}

std::string name_of(const ParallelSection& section) {
  return section.pieces.empty() ? "the end" : section_name(section.code);
}

struct Cost {
  int64_t calls = 0, pieces = 0;
  double work = 0, idle = 0, waiting = 0, overhead = 0;
  double lost() const { return idle + waiting + overhead; }
};

std::string rows_of(const std::map<std::string, Cost>& costs, double all, size_t rows, bool gaps) {
  std::vector<std::pair<std::string, Cost>> sorted(costs.begin(), costs.end());
  std::ranges::sort(sorted, std::greater(), [](const auto& row) { return row.second.lost(); });
  sorted.resize(std::min(rows, sorted.size()));
  std::string text;
  for (const auto& [name, cost] : sorted) {
    char line[512];
    const auto share = [&](double seconds) { return 100 * seconds / all; };
    const double calls = static_cast<double>(cost.calls);
    if (gaps) {
      std::snprintf(line, sizeof line, "| %s | %.0f | %.1f | %.2f%% |\n", name.c_str(), calls, 1e6 * cost.work / calls,
                    share(cost.lost()));
    } else {
      std::snprintf(line, sizeof line, "| %s | %.0f | %.0f | %.1f | %.2f%% | %.2f%% | %.2f%% | %.2f%% | %.2f%% |\n",
                    name.c_str(), calls, static_cast<double>(cost.pieces) / calls,
                    1e6 * cost.work / static_cast<double>(cost.pieces), share(cost.work), share(cost.idle),
                    share(cost.waiting), share(cost.overhead), share(cost.lost()));
    }
    text += line;
  }
  return text;
}

}  // namespace

std::string section_name(const void* code) {
  static const std::map<uintptr_t, std::string> symbols = read_symbols();
  const auto found = symbols.find(reinterpret_cast<uintptr_t>(code));
  if (found != symbols.end()) return function_name(found->second);
  char address[32];
  std::snprintf(address, sizeof address, "%p", code);
  return address;
}

Replay replay(std::span<const ParallelSection> sections, int workers, double overhead) {
  Replay result;
  result.workers = workers;
  for (const ParallelSection& section : sections) {
    const Replay::Part& part = result.parts.emplace_back(replay_section(section, workers));
    result.gaps += section.gap;
    result.work += section.gap + part.work;
    if (workers > 1 && !section.pieces.empty()) result.overhead += overhead;
    result.makespan += section.gap + part.makespan;
  }
  result.makespan += result.overhead;
  return result;
}

void keep_shortest(std::vector<ParallelSection>& sections, std::span<const ParallelSection> again) {
  NIBBLE_CHECK(sections.size() == again.size(), "two recordings of one step have different sections");
  for (size_t i = 0; i < sections.size(); ++i) {
    ParallelSection& to = sections[i];
    const ParallelSection& from = again[i];
    NIBBLE_CHECK(to.pieces.size() == from.pieces.size() && to.steps.size() == from.steps.size() && to.code == from.code,
                 "two recordings of one step differ in a section of " + name_of(to));
    to.gap = std::min(to.gap, from.gap);
    for (size_t k = 0; k < to.pieces.size(); ++k) to.pieces[k] = std::min(to.pieces[k], from.pieces[k]);
    for (size_t k = 0; k < to.steps.size(); ++k)
      to.steps[k].seconds = std::min(to.steps[k].seconds, from.steps[k].seconds);
  }
}

std::string costs_table(std::span<const ParallelSection> sections, const Replay& replay, size_t rows) {
  std::map<std::string, Cost> costs, gaps;
  const int64_t called = std::ranges::count_if(sections, [](const ParallelSection& s) { return !s.pieces.empty(); });
  const double overhead = replay.overhead / static_cast<double>(std::max<int64_t>(1, called));
  std::string before = "the start";
  for (size_t i = 0; i < sections.size(); ++i) {
    const std::string name = name_of(sections[i]);
    Cost& gap = gaps[before + " to " + name];
    ++gap.calls;
    gap.work += sections[i].gap;
    gap.idle += (replay.workers - 1) * sections[i].gap;
    before = name;
    if (sections[i].pieces.empty()) continue;
    Cost& cost = costs[name];
    ++cost.calls;
    cost.pieces += std::ssize(sections[i].pieces);
    cost.work += replay.parts[i].work;
    cost.idle += replay.parts[i].idle;
    cost.waiting += replay.parts[i].waiting;
    cost.overhead += replay.workers * overhead;
  }
  const double all = replay.workers * replay.makespan;
  return "| section | calls | pieces | us each | work | idle | waiting | start and end | lost |\n"
         "|---|---|---|---|---|---|---|---|---|\n" +
         rows_of(costs, all, rows, false) + "\n| between | calls | us each | lost |\n|---|---|---|---|\n" +
         rows_of(gaps, all, rows, true);
}

}  // namespace nibble::benchmarks
