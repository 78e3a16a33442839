"""Arrays of other libraries, for results."""


def to_library_of(like, array):
    """The entries of a new array of NumPy as an array of the library of ``like``; NumPy's where that has no way."""
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is None:
        return array
    library = namespace()
    try:
        return library.from_dlpack(array)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        # Some element types have no DLPack, such as NumPy's bfloat16.
        return library.asarray(array)


def empty_like(like, shape, dtype):
    """A new array in the memory of a GPU, of the library of ``like``."""
    library = type(like).__module__.partition(".")[0]
    if library == "cupy":
        import cupy

        with like.device:
            return cupy.empty(shape, dtype)
    if library == "numba":
        from numba import cuda

        return cuda.device_array(shape, dtype)
    raise TypeError(
        f"arrays of {type(like).__module__}.{type(like).__qualname__} cannot be made here: "
        "pass out, or vectors of torch, CuPy or Numba"
    )
