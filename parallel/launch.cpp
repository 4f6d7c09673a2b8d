#include "nibble/parallel/launch.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/io/processes/child_process.h"

namespace nibble {

namespace {

void append_program(const LaunchOptions& options, std::vector<std::string>& words) {
  words.push_back(options.program);
  words.insert(words.end(), options.args.begin(), options.args.end());
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::string_view("-_./:=,+@%").find(c) != std::string::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string yaml_list(const std::vector<std::string>& words, const std::string& indent) {
  std::string lines;
  for (const std::string& word : words) {
    std::string quoted;
    for (const char c : word) quoted += c == '\'' ? std::string("''") : std::string(1, c);
    lines += indent + "- '" + quoted + "'\n";
  }
  return lines;
}

bool is_open_mpi(std::string_view mpi) { return mpi.find("Open MPI") != std::string_view::npos; }

}  // namespace

std::string mpi_launcher(std::string_view mpi) {
  const char* const hydra = "mpiexec.hydra";
  return is_open_mpi(mpi) || !is_program(hydra) ? "mpirun" : hydra;
}

std::vector<std::string> mpirun_command(const LaunchOptions& options, std::string_view mpi) {
  const std::string ranks = std::to_string(options.ranks), threads = std::to_string(options.threads);
  std::vector<std::string> words = {options.launcher};
  if (is_open_mpi(mpi)) {
    if (options.root) words.push_back("--allow-run-as-root");
    words.insert(words.end(), {"--oversubscribe", "--bind-to", "none", "-n", ranks});
    if (!options.hosts.empty()) words.insert(words.end(), {"--host", options.hosts});
    words.insert(words.end(), {"-x", "OMP_NUM_THREADS=" + threads});
  } else {
    words.insert(words.end(), {"-bind-to", "none", "-n", ranks});
    if (!options.hosts.empty()) words.insert(words.end(), {"-hosts", options.hosts});
    words.insert(words.end(), {"-genv", "OMP_NUM_THREADS", threads});
  }
  append_program(options, words);
  return words;
}

std::string slurm_command(const LaunchOptions& options) {
  std::vector<std::string> words = {"srun", "--mpi=pmix", "--ntasks=" + std::to_string(options.ranks),
                                    "--cpus-per-task=" + std::to_string(options.threads),
                                    "--export=ALL,OMP_NUM_THREADS=" + std::to_string(options.threads)};
  append_program(options, words);
  return shell_line(words);
}

std::string kubernetes_job(const LaunchOptions& options) {
  LaunchOptions inside = options;
  inside.root = true;
  inside.hosts.clear();
  std::vector<std::string> words = mpirun_command(inside, "Open MPI");
  const std::string ranks = std::to_string(options.ranks), threads = std::to_string(options.threads);
  return "apiVersion: kubeflow.org/v2beta1\n"
         "kind: MPIJob\n"
         "metadata:\n"
         "  name: nibble\n"
         "spec:\n"
         "  slotsPerWorker: 1\n"
         "  runPolicy:\n"
         "    cleanPodPolicy: Running\n"
         "  mpiReplicaSpecs:\n"
         "    Launcher:\n"
         "      replicas: 1\n"
         "      template:\n"
         "        spec:\n"
         "          containers:\n"
         "          - name: launcher\n"
         "            image: IMAGE_WITH_NIBBLE\n"
         "            command:\n" +
         yaml_list(words, "            ") +
         "    Worker:\n"
         "      replicas: " +
         ranks +
         "\n"
         "      template:\n"
         "        spec:\n"
         "          containers:\n"
         "          - name: worker\n"
         "            image: IMAGE_WITH_NIBBLE\n"
         "            resources:\n"
         "              limits:\n"
         "                cpu: " +
         threads + "\n";
}

std::string shell_line(const std::vector<std::string>& words) { return joined(words, " ", shell_word); }

size_t parse_bytes(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = end;
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double factor = unit.empty() || unit == "b" ? 1 : 0, binary = 1, decimal = 1;
  for (const std::string prefix : {"k", "m", "g", "t"}) {
    binary *= 1024;
    decimal *= 1000;
    if (unit == prefix || unit == prefix + "ib") factor = binary;
    if (unit == prefix + "b") factor = decimal;
  }
  const double bytes = number * factor;
  if (end == text.c_str() || !std::isfinite(bytes) || bytes < 1 || bytes > 1e18) {
    throw UsageError(text + " is no amount of memory", "write it as 2GiB or 512MiB");
  }
  return static_cast<size_t>(bytes);
}

}  // namespace nibble
