// What the launcher and the MPI library say before MPI is started.

#define OMPI_SKIP_MPICXX 1  // the C++ bindings are gone from MPI 3 and do not compile without warnings
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdlib>

#include "nibble/parallel/comm/mpi_comm.h"

namespace nibble {

int launched_ranks() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* value = std::getenv(variable)) return std::max(1, std::atoi(value));
  }
  // srun sets the number of tasks for every step; PMIx tells that MPI can find its peers.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (tasks && (std::getenv("PMIX_RANK") || std::getenv("PMI_RANK"))) return std::max(1, std::atoi(tasks));
  return 1;
}

std::string mpi_library() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);  // allowed before MPI_Init
  std::string library(version, static_cast<size_t>(length));
  library = library.substr(0, library.find_first_of(",\n"));
  if (const size_t tab = library.find(" Version:\t"); tab != std::string::npos) library.replace(tab, 10, " ");  // MPICH
  return library;
}

std::string mpi_transport(const std::string& library) {
  if (library.find("Open MPI") == std::string::npos) return "";
  const char* pml = std::getenv("OMPI_MCA_pml");
  const char* btl = std::getenv("OMPI_MCA_btl");
  return ", transport " + std::string(pml ? pml : "ob1") + " over " + (btl ? btl : "shared memory (vader) and tcp");
}

}  // namespace nibble
