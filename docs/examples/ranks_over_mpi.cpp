// Ranks of an MPI job that exchange numbers: mpirun -n 2 ranks_over_mpi

#include <nibble/core/base/error.h>
#include <nibble/parallel/comm/mpi_comm.h>

#include <cstdio>

int main() {
  try {
    nibble::MpiSession mpi;
    nibble::Communicator& world = mpi.world();
    const double sum = world.all_reduce_sum("sum of the ranks", static_cast<double>(world.rank() + 1));
    if (world.rank() == 0) std::printf("%s; sum %g\n", mpi.description().c_str(), sum);
    mpi.finish();
    return 0;
  } catch (const nibble::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
