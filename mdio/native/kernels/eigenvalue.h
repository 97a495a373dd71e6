// Largest eigenvalue of the 4x4 key matrix of two structures, of their 3x3 inner products.
#pragma once

namespace mdio {

// `inner` is row by row. NaN if a number is not finite. `bound` is half the sum of both structures'
// squared coordinates, which the eigenvalue never exceeds.
double largest_eigenvalue(const double inner[9], double bound);

}  // namespace mdio
