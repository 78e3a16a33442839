"""Arrays that go from NumPy to another library."""


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
