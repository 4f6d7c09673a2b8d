#pragma once
// How a run with several ranks is started: the command lines of MPI launchers and cluster schedulers.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct LaunchOptions {
  int ranks = 1;
  std::string hosts;                ///< "alpha:2,beta:2"; empty: this machine
  int threads = 1;                  ///< of each rank
  bool root = false;                ///< started by root, which Open MPI needs a flag for
  std::string launcher = "mpirun";  ///< see mpi_launcher
  std::string program;              ///< path of nibble
  std::vector<std::string> args;    ///< "train", "recipe.json", ...
};

/// The program that starts ranks of this library: mpirun, or MPICH's own mpiexec.hydra where it is found, because with
/// both installed mpirun may be the other's.
std::string mpi_launcher(std::string_view mpi);

/// The launcher's argument vector. mpi: the library's name (mpi_library()): Open MPI and MPICH spell options
/// differently. Ranks are not bound to cores, may be more than there are slots, and get OMP_NUM_THREADS.
std::vector<std::string> mpirun_command(const LaunchOptions& options, std::string_view mpi);

/// The same job for Slurm, one line for a shell.
std::string slurm_command(const LaunchOptions& options);

/// The same job as a Kubernetes MPIJob (kubeflow.org/v2beta1), YAML. The image is to be filled in.
std::string kubernetes_job(const LaunchOptions& options);

/// Words as one line for a shell.
std::string shell_line(const std::vector<std::string>& words);

/// "2GiB", "512MB", "1.5G", "100000" -> bytes; throws UsageError. KB to TB are powers of 1000, KiB to TiB and K to T
/// powers of 1024.
size_t parse_bytes(const std::string& text);

}  // namespace nibble
