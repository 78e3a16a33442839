! y = A x by the BLAS of gemv, from Fortran: the calls of any BLAS.
! gfortran quickstart.f90 $(pkg-config --libs gemv_blas)
program quickstart
    implicit none
    double precision :: a(2, 3) = reshape([1d0, 4d0, 2d0, 5d0, 3d0, 6d0], [2, 3])
    double precision :: x(3) = [1d0, 0d0, -1d0], y(2)
    complex(8) :: u(2) = [(0d0, 1d0), (2d0, 0d0)]
    double precision, external :: dnrm2
    complex(8), external :: zdotc

    call dgemv('N', 2, 3, 1d0, a, 2, x, 1, 0d0, y, 1)
    print '(a, 2f6.1)', 'A x =', y
    print '(a, f8.4)', '|y| =', dnrm2(2, y, 1)
    print '(a, 2f6.1)', 'u* u =', zdotc(2, u, 1, u, 1)
end program
