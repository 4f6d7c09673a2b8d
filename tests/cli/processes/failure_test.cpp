#include "nibble/cli/processes/failure.h"

#include <gtest/gtest.h>

#include <new>
#include <system_error>

#include "nibble/core/base/error.h"

namespace nibble {
namespace {

TEST(Failure, WhatTheMachineRefusesIsNoDefectOfOurs) {
  EXPECT_EQ(cli::failure_of(std::system_error(EAGAIN, std::generic_category())).exit_code, 4) << "a thread";
  EXPECT_EQ(cli::failure_of(std::bad_alloc()).exit_code, 4);
  EXPECT_EQ(cli::failure_of(InputError("d.jsonl", "is empty")).exit_code, 3);
  EXPECT_EQ(cli::failure_of(std::system_error(EINVAL, std::generic_category())).exit_code, 70);
}

}  // namespace
}  // namespace nibble
