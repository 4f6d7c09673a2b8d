#pragma once
// A run, or several, as one page to look at: plain HTML with the curves drawn in it, readable without a network.

#include <filesystem>
#include <string>
#include <vector>

#include "nibble/core/io/files/atomic_file.h"
#include "nibble/recipes/report/plot.h"
#include "nibble/recipes/report/run_log.h"

namespace nibble {

/// A plot and the name of its file ("loss").
struct NamedPlot {
  std::string name;
  Plot plot;
};

/// Loss with evaluations, learning rate, gradient norm, throughput, memory, lengths; those that have data.
std::vector<NamedPlot> run_plots(const RunLog& log);

std::string report_page(const RunLog& log);
/// Curves of several runs over each other, their numbers and where their recipes differ.
std::string comparison_page(const std::vector<RunLog>& logs);
/// The numbers of comparison_page, the first row is the head.
std::vector<std::vector<std::string>> comparison_rows(const std::vector<RunLog>& logs);
/// recipe_differences() under a head with the runs' names; empty where there are none.
std::vector<std::vector<std::string>> difference_rows(const std::vector<RunLog>& logs);

/// require_replaceable_file() for such pages, and for plots.
void require_replaceable_page(const std::filesystem::path& file, Replace replace);
void require_replaceable_plot(const std::filesystem::path& file, Replace replace);

/// Reads the run in `directory` and writes its page to `target`. Throws as read_run_log, IoError.
void write_report(const std::filesystem::path& directory, const std::filesystem::path& target);

}  // namespace nibble
