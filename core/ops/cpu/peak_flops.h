#pragma once
// What the CPU could do: multiply-adds in registers, nothing read from memory. Speeds are told as shares of it, because
// machines differ and clocks change.

namespace nibble {

/// Runs a loop of multiply-adds at the best instruction set allowed (see isa()) on the calling thread, for bf16 with
/// f32 sums where the CPU has that, else in f32. Returns the floating point operations done (a few hundred million).
double run_flops_in_registers(bool bf16);

/// Floating point operations per second of all threads together, the best of a few tries; takes about 20 ms.
double peak_flops(bool bf16);

}  // namespace nibble
