# Julia's own BLAS calls, by gemv: `A * x`, `dot`, `norm`, `axpy!` and what builds on them.
using LinearAlgebra

BLAS.lbt_forward("libgemv_blas.so.0"; clear = false)
A, x = [1.0 2 3; 4 5 6], [1.0, 0, -1]
println(A * x)
