#pragma once
// The front door of the library.
#include "nibble/core/base/error.h"
#include "nibble/core/tensor/tensor.h"
