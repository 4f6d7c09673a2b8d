#pragma once
// Ranks as processes of an MPI job (MPI 3.1: Open MPI, MPICH). A run with one rank never starts MPI.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// How many ranks the launcher that started this process says there are (mpirun, srun, mpiexec set it in the
/// environment), 1 without a launcher. Does not start MPI.
int launched_ranks();

/// Name and version of the MPI library, "Open MPI v4.1.4". Does not start MPI.
std::string mpi_library();

/// What carries the bytes, ", transport ob1 over ...", as far as that library says; else empty.
std::string mpi_transport(const std::string& library);

/// The MPI of this process: started here and ended by finish(). Everything is exchanged by nonblocking messages that
/// are polled with a deadline. At the deadline a rank checks which others are alive: whoever waits answers with the
/// operation it is in, and the CommError names the ranks and hosts that did not answer, on the first rank that did.
/// While messages are under way and the rank computes, a thread of its own calls MPI, which moves nothing by itself.
class MpiSession {
 public:
  MpiSession();
  /// Without finish() (an error is on its way) MPI is left as it is; abort() ends the job.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  /// All ranks of the job.
  Communicator& world();
  /// "Open MPI v4.1.4, 4 ranks on 1 host, transport vader,self"
  std::string description() const;
  /// Ranks of this job on this rank's host, and this rank's place among them.
  int ranks_here() const;
  int place_here() const;
  /// Ends MPI; collective.
  void finish();
  /// Ends every process of the job with `exit_code`, after `say` has said why. Ranks mostly fail alike: on each host
  /// only the first one to come here speaks.
  [[noreturn]] void abort(int exit_code, const std::function<void()>& say);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
