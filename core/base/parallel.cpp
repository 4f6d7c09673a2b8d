#include "nibble/core/base/parallel.h"

#include <algorithm>

namespace nibble {

void set_threads(int threads) { omp_set_num_threads(std::max(1, threads)); }

int threads() { return omp_get_max_threads(); }

}  // namespace nibble
