#pragma once
// What the CPU could do: multiply-adds in registers, nothing read from memory. Speeds are given as shares of it,
// because machines differ and clocks change.

#include "nibble/core/ops/cpu/gemm/bf16_products.h"

namespace nibble {

/// Runs a loop of multiply-adds at the best instruction set allowed (see isa()) on the calling thread, for bf16 with
/// f32 sums where the CPU has that, else in f32. Returns the floating point operations done (a few hundred million).
double run_flops_in_registers(bool bf16, int steps = 1 << 18);

/// Multiply-adds of bf16 in the time of one of f32, in registers of the calling thread: 2 where the instruction for
/// pairs of bf16 starts as often as that for f32; 0 where there is none. Measured once, in less than a millisecond, by
/// the shortest of many turns, which other work on the machine does not reach.
double bf16_to_f32_rate();

/// f32 where that arithmetic is 1.3 times as fast as the instructions for bf16, or more: rates of CPUs are far from
/// there, 0.5, 1 or 2, so that a machine always gives the same answer.
ops::Bf16Products faster_bf16_products();

/// Floating point operations per second of all threads together, the best of some short tries that begin when all are
/// there. Takes 2 to 20 ms where they have cores, up to 100 where they have not.
double peak_flops(bool bf16);

}  // namespace nibble
