#pragma once
#include "nibble/core/ops/experts/grouped.h"

namespace nibble::ops {

/// Whether grouped_matmul() fuses an update of this rank into the product of rows of x [., depth] in dtype, whose
/// results [., columns] are added to the tokens' rows. Where it does not, it adds updates when the products of all
/// groups have been added.
bool fuses_update(DType dtype, RowOrder x_order, int64_t depth, int64_t columns, int64_t rank);

}  // namespace nibble::ops
